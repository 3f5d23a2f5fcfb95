-- How the process that `reprise run` started has ended, and verdicts of runs
-- that are over, which are made of all their reports.

-- As a shell says it, 128 + signal; -1: nobody said.
ALTER TABLE runs ADD COLUMN exit_code INTEGER NOT NULL DEFAULT -1;
ALTER TABLE runs ADD COLUMN exit_signal INTEGER NOT NULL DEFAULT 0;

-- What it was imported from, as the label of its session says; '' of a job.
ALTER TABLE runs ADD COLUMN imported TEXT NOT NULL DEFAULT '';
UPDATE runs SET imported = coalesce(
  (SELECT substr(l, 1, instr(l, char(10)) - 1) FROM
    (SELECT substr(char(10) || labels,
                   instr(char(10) || labels, char(10) || 'imported=') + 10) AS l
     FROM sessions s WHERE s.run_id = runs.run_id
     AND instr(char(10) || labels, char(10) || 'imported=') > 0 LIMIT 1)), '');

-- `made_of` says which reports, plan and state `body`, a serialized
-- reprise.v1.Verdict, was made of; another text means that it is out of date.
CREATE TABLE verdicts (
  run_id  TEXT PRIMARY KEY,
  made_of TEXT NOT NULL,
  body    BLOB NOT NULL
) WITHOUT ROWID;
