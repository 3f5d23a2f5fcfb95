-- What the store holds of each run and what its quota kept out, who opened
-- each session, and who did what.

-- Bytes of chunks, reports, names and step graphs as they came; and what came
-- when the quota was used up: counted, not stored.
ALTER TABLE runs ADD COLUMN stored_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN refused_records INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN refused_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET stored_bytes = coalesce(
  (SELECT sum(length(c.body)) FROM sessions s
   JOIN chunks c ON c.session_id = s.session_id
   WHERE s.run_id = runs.run_id), 0);

-- As in `audit`; '' in sessions of before.
ALTER TABLE sessions ADD COLUMN who TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN peer TEXT NOT NULL DEFAULT '';

-- One thing that was done, in order; a reprise.v1.AuditEntry. Only the newest
-- are kept (audit_rows.h), those of removed runs too.
CREATE TABLE audit (
  id      INTEGER PRIMARY KEY,
  at_ns   INTEGER NOT NULL,
  who     TEXT NOT NULL,
  peer    TEXT NOT NULL,
  action  TEXT NOT NULL,
  run_id  TEXT NOT NULL,
  subject TEXT NOT NULL,
  outcome TEXT NOT NULL,
  detail  TEXT NOT NULL
);
CREATE INDEX audit_by_run ON audit (run_id, id);
