-- A request does not wait for the disk to be counted.
ALTER TABLE rate_limit SET UNLOGGED;
