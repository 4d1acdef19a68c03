# Functions of ours that an index expression or a materialized view calls, where
# they run for the owner of the table, in the worker of that very job.
#
# Fault (indexes): expressions, also on TOASTed values and ones that read tables; partial (also
#   054)
# Fault (security): calling us from an index expression
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('calls_from_expressions');

# one call of ours for each row of calls, and what became of it
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE calls (id int, call text);
INSERT INTO calls VALUES
	(1, $$SELECT public.alter_move((SELECT max(job) FROM public.index_mover_progress), 'max_rate', '1GB')$$),
	(2, $$SELECT public.alter_move((SELECT max(job) FROM public.index_mover_progress), 'nosuch', '1')$$),
	(3, $$SELECT public.pause_move((SELECT max(job) FROM public.index_mover_progress))$$),
	(4, $$SELECT public.resume_move((SELECT max(job) FROM public.index_mover_progress))$$),
	(5, $$SELECT count(*) FROM public.move_indexes('public.t', 'regress_slow', wait => false)$$),
	(6, $$SELECT count(*) FROM public.move_indexes('public.t', 'regress_slow')$$),
	(7, $$SELECT public.resume_move(1)$$),
	(8, $$SELECT count(*) FROM public.undo_move(1, false)$$),
	(9, $$SELECT count(*) FROM public.index_mover_cleanup()$$);
CREATE TABLE t (i int);
CREATE FUNCTION f(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
	call text := (SELECT c.call FROM public.calls c WHERE c.id = f.i);
	result text;
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_stat_activity
				WHERE pid = pg_catalog.pg_backend_pid() AND backend_type = 'index_mover') THEN
		BEGIN
			EXECUTE call INTO result;
			RAISE NOTICE '%: %', i, result;
		EXCEPTION WHEN OTHERS THEN
			RAISE NOTICE '%: %', i, sqlstate;
		END;
	END IF;
	RETURN i;
END $$;
CREATE INDEX t_f ON t (f(i));
SQL
# job 1 is cut off, so that there is something to resume
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE cut (i int);
CREATE INDEX ON cut (i);
BEGIN;
SELECT status FROM move_indexes('cut', 'regress_fast', wait => false);
SELECT cancel_move(1);
COMMIT;
CALL wait_for_move(1, raise => false);
INSERT INTO t SELECT generate_series(1, 9);
SELECT oracle.remember_keys('t'), oracle.remember_metadata('t');
SQL

my ($stdout, $stderr);
$node->psql('postgres', "SELECT status, sqlstate, detail FROM move_indexes('t', 'regress_fast', 'rebuild')",
	stdout => \$stdout, stderr => \$stderr, timeout => 180);
is($stdout, 'moved||', 'the move is done');
my %said = $stderr =~ /NOTICE:  (\d+): (\w+)/g;
is_deeply(\%said,
	{ 1 => 'true', 2 => '22023', 3 => '1', 4 => '2', 5 => '42501', 6 => '42501', 7 => '42501', 8 => '42501', 9 => '42501' },
	'each call says what it did, or cleanly why it does not');
wait_for_no_worker($node);
is($node->safe_psql('postgres', 'SELECT max(job) FROM index_mover_history'), '2', 'no job was made');

# a setting that makes an error end the process ends only the index of the function that sets it
my @fatal = ('exit_on_error', $node->pg_version >= 17 ? 'transaction_timeout' : ());
foreach my $setting (@fatal)
{
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE u (i int);
INSERT INTO u VALUES (1);
CREATE FUNCTION g(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \$\$
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_stat_activity
				WHERE pid = pg_catalog.pg_backend_pid() AND backend_type = 'index_mover') THEN
		PERFORM set_config('$setting', CASE '$setting' WHEN 'exit_on_error' THEN 'on' ELSE '10' END, true);
		PERFORM pg_sleep(1);
		RAISE 'still alive';
	END IF;
	RETURN i;
END \$\$;
CREATE INDEX u_g ON u (g(i));
CREATE INDEX u_i ON u (i);
SQL
	is($node->safe_psql('postgres', "SELECT name, status, sqlstate, detail FROM move_indexes('u', 'regress_fast', 'rebuild') ORDER BY 1"),
		"u_g|failed|55P02|parameter \"$setting\" cannot be changed\nu_i|moved||", "$setting: the job goes on");
	$node->safe_psql('postgres', 'DROP TABLE u; DROP FUNCTION g');
}
survived_ok($node, 't', 'calls from expressions', "SELECT status FROM move_indexes('t', 'regress_slow', 'copy')");
done_testing();
