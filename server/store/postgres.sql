-- What a store in PostgreSQL has besides the tables of migrations/*.sql. Run
-- again, as a whole, when this text changes.

-- Tells every daemon that a run changed, when the change is committed.
CREATE OR REPLACE FUNCTION reprise_run_changed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    PERFORM pg_notify('reprise_runs', OLD.run_id);
  ELSE
    PERFORM pg_notify('reprise_runs', NEW.run_id);
  END IF;
  RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER reprise_run_changed
  AFTER INSERT OR UPDATE OR DELETE ON runs
  FOR EACH ROW EXECUTE FUNCTION reprise_run_changed();
CREATE OR REPLACE TRIGGER reprise_run_changed
  AFTER INSERT OR UPDATE OR DELETE ON sessions
  FOR EACH ROW EXECUTE FUNCTION reprise_run_changed();
CREATE OR REPLACE TRIGGER reprise_run_changed
  AFTER INSERT ON windows
  FOR EACH ROW EXECUTE FUNCTION reprise_run_changed();

-- A row for each plan that is being made: its daemon has it locked (FOR UPDATE)
-- until the plan is stored. The lock of a daemon that dies is gone with its
-- connection.
CREATE TABLE IF NOT EXISTS reprise_leases (
  name TEXT COLLATE "C" PRIMARY KEY
);

-- Which plan answers a request, whoever made it. `request` is what
-- the request says (server/service/planning/planning_once.cc).
CREATE TABLE IF NOT EXISTS reprise_answers (
  request TEXT COLLATE "C" PRIMARY KEY,
  plan_id TEXT COLLATE "C" NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS reprise_answers_by_plan ON reprise_answers (plan_id);
