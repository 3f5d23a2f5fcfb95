-- The schema of 0.2.0, the first release. Times are Unix ns unless a column says CLOCK_MONOTONIC;
-- ids of graphs and plans are 16 hex digits; states are the numbers of the
-- protos. What arrives by Ingest is stored in one transaction with its chunk,
-- so every other table follows from `chunks` and is never ahead of it.

-- One profiled job.
CREATE TABLE runs (
  run_id      TEXT PRIMARY KEY,
  name        TEXT NOT NULL,              -- label "name", else the run id
  host        TEXT NOT NULL DEFAULT '',   -- of the first session
  pid         INTEGER NOT NULL DEFAULT 0,
  world       INTEGER NOT NULL DEFAULT 0, -- ranks
  state       INTEGER NOT NULL,           -- reprise.v1.RunState
  started_ns  INTEGER NOT NULL,
  ended_ns    INTEGER NOT NULL DEFAULT 0, -- 0 while it runs
  steps       INTEGER NOT NULL DEFAULT 0, -- step reports of rank 0
  records     INTEGER NOT NULL DEFAULT 0, -- in committed chunks
  dropped     INTEGER NOT NULL DEFAULT 0, -- by agents whose ring was full
  lost_chunks INTEGER NOT NULL DEFAULT 0,
  graph_id    TEXT NOT NULL DEFAULT '',   -- latest, '' for none
  plan_id     TEXT NOT NULL DEFAULT '',   -- latest, '' for none
  -- Bytes of chunks, reports, names and step graphs as they came; and what came
  -- when the quota was used up: counted, not stored.
  stored_bytes    INTEGER NOT NULL DEFAULT 0,
  refused_records INTEGER NOT NULL DEFAULT 0,
  refused_bytes   INTEGER NOT NULL DEFAULT 0,
  -- How the process that `reprise run` started has ended. As a shell says it,
  -- 128 + signal; -1: nobody said.
  exit_code   INTEGER NOT NULL DEFAULT -1,
  exit_signal INTEGER NOT NULL DEFAULT 0,
  imported    TEXT NOT NULL DEFAULT ''    -- from what; '' of a job
) WITHOUT ROWID;
CREATE INDEX runs_by_start ON runs (started_ns DESC, run_id);

-- One agent process in a run.
CREATE TABLE sessions (
  session_id      TEXT PRIMARY KEY,
  run_id          TEXT NOT NULL REFERENCES runs (run_id),
  host            TEXT NOT NULL,
  pid             INTEGER NOT NULL,
  pid_start_ticks INTEGER NOT NULL,       -- with boot_id tells whether it lives
  boot_id         TEXT NOT NULL,
  rank            INTEGER NOT NULL,
  local_rank      INTEGER NOT NULL,
  world           INTEGER NOT NULL,
  uid             INTEGER NOT NULL,
  labels          TEXT NOT NULL,          -- "key=value" lines
  monotonic_ns    INTEGER NOT NULL,       -- read together with realtime_ns
  realtime_ns     INTEGER NOT NULL,
  state           INTEGER NOT NULL,
  ended_ns        INTEGER NOT NULL DEFAULT 0,
  pushed          INTEGER NOT NULL DEFAULT 0, -- from Bye
  dropped         INTEGER NOT NULL DEFAULT 0,
  torn            INTEGER NOT NULL DEFAULT 0,
  who             TEXT NOT NULL DEFAULT '',   -- as in the log (Caller in server/core/caller.h)
  peer            TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX sessions_by_run ON sessions (run_id);

-- How far a producer has come: every seq up to `committed` is in `chunks` or
-- in `lost`.
CREATE TABLE streams (
  session_id     TEXT NOT NULL REFERENCES sessions (session_id),
  producer_epoch INTEGER NOT NULL,
  committed      INTEGER NOT NULL,
  PRIMARY KEY (session_id, producer_epoch)
) WITHOUT ROWID;

-- Records, 1 to 4,096 to a row, as they came.
CREATE TABLE chunks (
  session_id     TEXT NOT NULL,
  producer_epoch INTEGER NOT NULL,
  seq            INTEGER NOT NULL,
  t0_ns          INTEGER NOT NULL,        -- CLOCK_MONOTONIC
  t1_ns          INTEGER NOT NULL,
  count          INTEGER NOT NULL,
  dropped_before INTEGER NOT NULL,
  layout         INTEGER NOT NULL,        -- 0: a serialized Columns
  body           BLOB NOT NULL,
  PRIMARY KEY (session_id, producer_epoch, seq)
) WITHOUT ROWID;

-- Chunks the sender no longer had.
CREATE TABLE lost (
  session_id     TEXT NOT NULL,
  producer_epoch INTEGER NOT NULL,
  from_seq       INTEGER NOT NULL,
  to_seq         INTEGER NOT NULL,
  reason         TEXT NOT NULL,
  PRIMARY KEY (session_id, producer_epoch, from_seq)
) WITHOUT ROWID;

-- Texts that records refer to by id.
CREATE TABLE names (
  session_id TEXT NOT NULL,
  id         INTEGER NOT NULL,
  text       TEXT NOT NULL,
  PRIMARY KEY (session_id, id)
) WITHOUT ROWID;

-- Step graphs; `body` is a serialized reprise.v1.StepGraph.
CREATE TABLE graphs (
  graph_id   TEXT PRIMARY KEY,
  created_ns INTEGER NOT NULL,
  name       TEXT NOT NULL,
  ops        INTEGER NOT NULL,
  storages   INTEGER NOT NULL,
  body       BLOB NOT NULL
);

-- Plans, feasible or not; `body` is a serialized reprise.v1.Plan, `request`
-- the PlanRequest that led to it with the reserve that was held back.
CREATE TABLE plans (
  plan_id    TEXT PRIMARY KEY,
  graph_id   TEXT NOT NULL REFERENCES graphs (graph_id),
  created_ns INTEGER NOT NULL,
  feasible   INTEGER NOT NULL,
  budget_bytes INTEGER NOT NULL,
  request    BLOB NOT NULL,
  body       BLOB NOT NULL
);
CREATE INDEX plans_by_graph ON plans (graph_id);

-- What the executor measured, in order of arrival.
CREATE TABLE steps (
  id             INTEGER PRIMARY KEY,
  run_id         TEXT NOT NULL,
  session_id     TEXT NOT NULL,
  step           INTEGER NOT NULL,
  planned        INTEGER NOT NULL,
  window         INTEGER NOT NULL,
  report         BLOB NOT NULL            -- a serialized StepReport
);
CREATE INDEX steps_by_run ON steps (run_id, id);
CREATE INDEX steps_windowed ON steps (run_id, planned, id) WHERE window = 1;

-- Gradient checks.
CREATE TABLE checks (
  id         INTEGER PRIMARY KEY,
  run_id     TEXT NOT NULL,
  session_id TEXT NOT NULL,
  step       INTEGER NOT NULL,
  report     BLOB NOT NULL,               -- a serialized VerifyReport
  plan_id    TEXT NOT NULL DEFAULT '',    -- of the report, as `failed` is
  failed     INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX checks_by_run ON checks (run_id, id);
-- A plan that failed anywhere is not offered again.
CREATE INDEX failed_checks_by_plan ON checks (plan_id) WHERE failed = 1;

-- What became of plans in executors.
CREATE TABLE plan_states (
  id         INTEGER PRIMARY KEY,
  run_id     TEXT NOT NULL,
  session_id TEXT NOT NULL,
  plan_id    TEXT NOT NULL,
  state      INTEGER NOT NULL,            -- reprise.v1.PlanState
  why        TEXT NOT NULL,
  at_ns      INTEGER NOT NULL,            -- CLOCK_MONOTONIC
  -- What the executor needs for itself per step beyond the plan's ops, and the
  -- peak as it runs the plan; 0: as the plan says.
  own_ns     INTEGER NOT NULL DEFAULT 0,
  peak_bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX plan_states_by_run ON plan_states (run_id, id);

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

-- What was under way, and in memory, when jobs were killed or ran out of memory:
-- one moment of one process, in order of arrival; from its chunk.
CREATE TABLE moments (
  id         INTEGER PRIMARY KEY,
  run_id     TEXT NOT NULL,
  session_id TEXT NOT NULL,
  report     BLOB NOT NULL                -- a serialized reprise.v1.Moment
);
CREATE INDEX moments_by_run ON moments (run_id, id);

-- One thing that was done, in order. Gone since 0009.
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

-- Verdicts of runs that are over, which are made of all their reports.
-- `made_of` says which reports, plan and state `body`, a serialized
-- reprise.v1.Verdict, was made of; another text means that it is out of date.
CREATE TABLE verdicts (
  run_id  TEXT PRIMARY KEY,
  made_of TEXT NOT NULL,
  body    BLOB NOT NULL
) WITHOUT ROWID;
