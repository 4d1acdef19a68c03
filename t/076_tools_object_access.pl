# Another module's object access hook beside ours, as sepgsql has one: of a move it
# is told what it is told of core's own command, for the same role; and when it
# refuses, the move ends with its error, and what it leaves behind goes as soon as
# the hook lets it.
#
# Fault (security): another module's object access hook (as sepgsql's): it is told of a move
#   what `ALTER INDEX .. SET TABLESPACE` and `REINDEX CONCURRENTLY` tell it; and refuses
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_faults();

my $library = "$PostgreSQL::Test::Utils::tmp_check/object_access.so";
{
	chomp(my $headers = `pg_config --includedir-server`);
	my $messages = '';
	IPC::Run::run(
		[ $ENV{CC} || 'cc', '-shared', '-fPIC', '-O1', "-I$headers", '-o', $library, "$FindBin::RealBin/object_access.c" ],
		'>&', \$messages)
	  or plan skip_all => "cannot compile t/object_access.c: $messages";
}

# its hook is there first, so that ours calls it
my $node = new_node('object_access', conf => qq{shared_preload_libraries = '"$library"'\n});
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE regress_mover LOGIN;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_mover;
GRANT EXECUTE ON FUNCTION move_indexes TO regress_mover;
GRANT CREATE ON SCHEMA public TO regress_mover;
SET ROLE regress_mover;
CREATE TABLE oa (i int, s text);
INSERT INTO oa SELECT g, md5(g::text) FROM generate_series(1, 2000) g;
CREATE INDEX oa_s ON oa (s) TABLESPACE regress_slow;
CREATE TABLE oap (i int) PARTITION BY RANGE (i);
CREATE INDEX oap_i ON oap (i) TABLESPACE regress_slow;
RESET ROLE;
SELECT oracle.remember_keys('oa'), oracle.remember_metadata('oa');
SQL

sub move
{
	my ($index, $method) = @_;
	return sprintf "SELECT status, sqlstate, detail FROM move_indexes('%s', '%s'%s)", $index, elsewhere($node, $index),
	  $method ? ", method => '$method'" : '';
}

sub as_mover
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-U', 'regress_mover' ]);
	is($rc, 0, $sql) or diag $err;
	return $out;
}

# What the hook has logged since.
sub told
{
	my ($log) = @_;
	return join "\n", slurp_file($node->logfile, $log) =~ /object access: (.*)$/mg;
}

sub set_hook
{
	my ($name, $value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET object_access.$name = '$value'");
	$node->reload;
	return;
}

# ---- it is told what core tells it ----------------------------------------------------
foreach my $case (
	[ 'a copy', 'oa_s', "ALTER INDEX oa_s SET TABLESPACE %s", 'copy', qr/^alter oa_s by regress_mover$/ ],
	[ 'a partitioned index', 'oap_i', "ALTER INDEX oap_i SET TABLESPACE %s", '', qr/^alter oap_i by regress_mover$/ ],
	[ 'a rebuild', 'oa_s', "REINDEX (TABLESPACE %s) INDEX CONCURRENTLY oa_s", 'rebuild',
		qr/^create something by regress_mover.*\ndrop oa_s_ccold by regress_mover/ ])
{
	my ($name, $index, $core, $method, $expected) = @$case;
	my $log = -s $node->logfile;
	as_mover(sprintf $core, elsewhere($node, $index));
	my $by_core = told($log);
	like($by_core, $expected, "$name: what core's own command tells the hook");
	$log = -s $node->logfile;
	like(as_mover(move($index, $method)), qr/^moved\|/, "$name: moved");
	is(told($log), $by_core, "$name: the hook is told the same");
}

# ---- it refuses --------------------------------------------------------------------------
# Here a refusal is an error of the move, and the index stays where it was; the
# removal of the old index comes when it has moved.
sub refused
{
	my ($name, $index, $method, $what, $status) = @_;
	my ($from, $to) = (tablespace_of_index($node, $index), elsewhere($node, $index));
	set_hook('refuse', $what);
	my $log = -s $node->logfile;
	my $sql = move($index, $method);
	is(as_mover($sql), "$status|42501|no role may $what relations today", "$name: the row");
	is(tablespace_of_index($node, $index), $status eq 'moved' ? $to : $from, "$name: where the index is");
	wait_for_no_worker($node);
	my $left = $what eq 'drop' ? 1 : 0;
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), $left, "$name: what is left");
	ok($node->log_contains(qr/could not remove index with OID .*, left by an interrupted move\n.*DETAIL:  no role may drop relations today/,
		$log),
		"$name: the removal was refused, too") if $left;
	set_hook('refuse', '');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()'), $left, "$name: what index_mover_cleanup() removes");
	survived_ok($node, 'oa', $name, move($index, $method), max_keys => 50, count => q{refused by another module's hook});
	wait_for_no_worker($node);
	return;
}

refused('copy, alter refused', 'oa_s', 'copy', 'alter', 'failed');
refused('partitioned index, alter refused', 'oap_i', '', 'alter', 'failed');
refused('rebuild, create refused', 'oa_s', 'rebuild', 'create', 'failed');
refused('rebuild, drop refused', 'oa_s', 'rebuild', 'drop', 'moved');

# ---- it comes after ours ------------------------------------------------------------------
$node->append_conf('postgresql.conf', qq{shared_preload_libraries = 'index_mover, "$library"'\n});
$node->restart;
refused('rebuild, create refused behind our hook', 'oa_s', 'rebuild', 'create', 'failed');
refused('copy, alter refused behind our hook', 'oa_s', 'copy', 'alter', 'failed');

# One that keeps it from ours: then nothing is on record while the rebuild runs, and
# afterwards nothing has to be.
set_hook('pass_on', 'off');
like(as_mover(move('oa_s', 'rebuild')), qr/^moved\|\|$/, 'a hook that does not call ours: moved');
survived_ok($node, 'oa', 'a hook that does not call ours', move('oa_s', 'rebuild'), max_keys => 50, restarted => 1);

$node->stop;
done_testing();
