-- What works in each session, and the windows that people asked for.

-- What a session said last; `report` is a serialized reprise.v1.Caps.
CREATE TABLE capabilities (
  session_id TEXT PRIMARY KEY REFERENCES sessions (session_id),
  report     BLOB NOT NULL
) WITHOUT ROWID;

-- A few steps to be recorded, asked for while the job ran. What came of one
-- follows from the rows of `steps` after it.
CREATE TABLE windows (
  id         INTEGER PRIMARY KEY,
  run_id     TEXT NOT NULL,
  asked_ns   INTEGER NOT NULL,
  steps      INTEGER NOT NULL,
  at_step    INTEGER NOT NULL,         -- not before this one; 0: the next
  after_row  INTEGER NOT NULL          -- the newest steps.id when it was asked
);
CREATE INDEX windows_by_run ON windows (run_id, id);
