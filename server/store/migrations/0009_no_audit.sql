-- Who did what is in the daemon's log.
DROP TABLE audit;
