-- What an executor said of a plan when it applied it.

-- What it needs for itself per step beyond the plan's ops, and the peak as it
-- runs the plan; 0: as the plan says. States beyond 3: reprise.v1.PlanState.
ALTER TABLE plan_states ADD COLUMN own_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE plan_states ADD COLUMN peak_bytes INTEGER NOT NULL DEFAULT 0;
