-- How the process that `reprise run` started has ended, and verdicts of runs
-- that are over, which are made of all their reports.

-- As a shell says it, 128 + signal; -1: nobody said.
ALTER TABLE runs ADD COLUMN exit_code INTEGER NOT NULL DEFAULT -1;
ALTER TABLE runs ADD COLUMN exit_signal INTEGER NOT NULL DEFAULT 0;

-- What it was imported from, as the label of its session says; '' of a job.
-- Rows of before are filled from their sessions (fill.cc).
ALTER TABLE runs ADD COLUMN imported TEXT NOT NULL DEFAULT '';

-- `made_of` says which reports, plan and state `body`, a serialized
-- reprise.v1.Verdict, was made of; another text means that it is out of date.
CREATE TABLE verdicts (
  run_id  TEXT PRIMARY KEY,
  made_of TEXT NOT NULL,
  body    BLOB NOT NULL
) WITHOUT ROWID;
