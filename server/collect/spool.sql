-- The collector's spool: what agents reported and the server has not
-- acknowledged yet. One row per chunk, never one per record.
-- Migration 1 of the file.

-- One agent process. Deleted once the server has taken its end.
CREATE TABLE sessions (
  id             INTEGER PRIMARY KEY,
  session_id     TEXT    NOT NULL UNIQUE,  -- UUID, chosen by the agent
  run_id         TEXT    NOT NULL,
  producer_epoch INTEGER NOT NULL,         -- larger whenever seq restarts
  info           BLOB    NOT NULL,         -- serialized SessionInfo
  peer_pid       INTEGER NOT NULL,         -- as the kernel told; 0 unknown
  peer_ticks     INTEGER NOT NULL,         -- start time of that process
  ring_position  INTEGER NOT NULL,         -- every ring position below is here
  next_seq       INTEGER NOT NULL,         -- of the next chunk, from 1
  pending        BLOB    NOT NULL,         -- slots: STEP_DONE without STEP_MEM
  records        INTEGER NOT NULL,         -- taken from the ring
  pushed         INTEGER NOT NULL,         -- told by the agent at its end
  dropped        INTEGER NOT NULL,         -- never entered the full ring
  torn           INTEGER NOT NULL,         -- half-written or malformed
  ended          INTEGER NOT NULL,         -- 0 running, 1 said so, 2 killed
  realtime_to_monotonic_ns INTEGER NOT NULL
);

-- Deleted once acknowledged.
CREATE TABLE chunks (
  session        INTEGER NOT NULL,         -- sessions.id
  seq            INTEGER NOT NULL,         -- from 1, without holes
  t0_ns          INTEGER NOT NULL,
  t1_ns          INTEGER NOT NULL,
  count          INTEGER NOT NULL,
  crc32c         INTEGER NOT NULL,         -- of body
  dropped_before INTEGER NOT NULL,
  body           BLOB    NOT NULL,         -- serialized Columns
  PRIMARY KEY (session, seq)
) WITHOUT ROWID;

-- Texts the records refer to; kept until the session is deleted, because the
-- server is told all of them again after every reconnect.
CREATE TABLE defs (
  session INTEGER NOT NULL,                -- sessions.id
  ordinal INTEGER NOT NULL,                -- order of arrival, from 1
  name    INTEGER NOT NULL,                -- the agent's id of the text
  text    TEXT    NOT NULL,
  PRIMARY KEY (session, ordinal)
) WITHOUT ROWID;
