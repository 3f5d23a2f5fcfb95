-- What was under way, and in memory, when jobs were killed or ran out of memory.

-- One moment of one process, in order of arrival; from its chunk.
CREATE TABLE moments (
  id         INTEGER PRIMARY KEY,
  run_id     TEXT NOT NULL,
  session_id TEXT NOT NULL,
  report     BLOB NOT NULL                -- a serialized reprise.v1.Moment
);
CREATE INDEX moments_by_run ON moments (run_id, id);
