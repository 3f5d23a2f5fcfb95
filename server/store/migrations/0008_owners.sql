-- Several users on one server: whose runs and step graphs they are.

-- Who sent it first, as in the log; '' where nobody knows. Runs of before belong
-- to whoever opened their first session.
ALTER TABLE runs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
UPDATE runs SET owner = coalesce(
  (SELECT s.who FROM sessions s WHERE s.run_id = runs.run_id
   ORDER BY s.realtime_ns, s.session_id LIMIT 1), '');

-- Step graphs that users sent, who may read them and plan for them: the same
-- step of several users is stored once.
CREATE TABLE graph_owners (
  graph_id TEXT NOT NULL,
  owner    TEXT NOT NULL,
  PRIMARY KEY (graph_id, owner)
) WITHOUT ROWID;
