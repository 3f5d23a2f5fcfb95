-- Which plan a check was about, and whether it failed: a plan that failed
-- anywhere is not offered again. Rows of before are filled from their reports
-- (fill.cc).
ALTER TABLE checks ADD COLUMN plan_id TEXT NOT NULL DEFAULT '';
ALTER TABLE checks ADD COLUMN failed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX failed_checks_by_plan ON checks (plan_id) WHERE failed = 1;
