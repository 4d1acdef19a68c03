# Incremental base backups in the middle of a copy (PostgreSQL 17 and newer):
# what a chain of them, put together, restores has the index where it was, right,
# and after a clean-up no file too many.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Programs;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
plan skip_all => 'incremental backups came with PostgreSQL 17'
  unless `pg_config --version` =~ /PostgreSQL (\d+)/ && $1 >= 17;

# (every backup is a checkpoint; the WAL that the copy still has to read stays)
my $node = new_node('primary', streaming => 1, conf => <<CONF);
summarize_wal = on
wal_keep_size = 2GB
checkpoint_timeout = 1h
max_wal_size = 2GB
CONF
$node->safe_psql('postgres', <<SQL);
CREATE TABLE kept (i int, s text) WITH (fillfactor = 80);
INSERT INTO kept SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 100000) g;
CREATE INDEX kept_s ON kept (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('kept');
LOAD 'index_mover';
SQL
cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('kept_s')"),
	'>', 17 * 1024 * 1024, 'the old file is removed in more than one step');

my @chain;

# Take the next backup of the chain: only what has changed since the last one.
sub next_backup
{
	my ($name) = @_;
	my @since = map { ('--incremental', $node->backup_dir . "/$_/backup_manifest") } @chain ? $chain[-1] : ();
	$node->backup($name, backup_options => \@since);
	backup_ok($node, $name, "the backup \"$name\"");
	push @chain, $name;
	return;
}

# Names of files of a backup that hold only changes, in the folders of tablespaces.
sub incremental_files
{
	my ($name) = @_;
	(my $dir = $node->backup_dir . "/$name") =~ s/([\s\\*?{}\[\]~])/\\$1/g;
	my @files = glob("$dir/pg_tblspc/*/PG_*/*/INCREMENTAL.*");
	return scalar @files;
}

next_backup('full');

# Let the copy go on to where it has logged some blocks of its second half, and
# not written them yet.  (A file of which nearly all has changed since the last
# backup goes into the next one whole.)  Returns the new gate.
sub go_on_to_copy_logged
{
	my ($gate) = @_;
	my $next = IndexMover::Session->new($node);
	$next->run('SELECT pg_advisory_lock(0, 5960)');
	my $log = -s $node->logfile;
	$gate->end;
	$node->wait_for_log(qr/test point "copy-logged": waiting/, $log);
	return $next;
}

# ---- moves, each with an incremental backup in the middle and one behind it --------
# point, is the swap done by then, what is left out
my %at;
foreach my $case ([ 'copy-logged', 0, 'log-once' ], [ 'copy-logged', 0 ], [ 'copy-half', 0 ], [ 'swap-copied', 0 ],
	[ 'old-file-step', 1 ])
{
	my ($point, $swapped, $mutation) = @$case;
	my $name = $mutation || $point;
	my $from = tablespace_of_index($node, 'kept_s');
	my $to = other_place($from);
	my $first = $point eq 'copy-logged' ? 'copy-half' : $point;
	set_tests($node, test_point => "$first:wait" . ($first ne $point ? ",$point:wait2" : ''), test_mutation => $mutation);
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $job = $node->safe_psql('postgres',
		"SELECT job FROM move_indexes('kept_s', '$to', method => 'copy', wait => false, settings => '{\"pacing\": \"off\"}')");
	$node->wait_for_log(qr/test point "$first": waiting/, $log);
	$gate = go_on_to_copy_logged($gate) if $point eq 'copy-logged';
	# (under the exclusive lock nobody can write to it)
	$node->safe_psql('postgres', "UPDATE kept SET s = md5(s) WHERE i % 1000 = 7") unless $point eq 'swap-copied';
	next_backup("in $name");
	$gate->end;
	$node->safe_psql('postgres', "CALL wait_for_move($job)");
	set_tests($node);
	is($node->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $job"),
		'moved', "a backup at $name: the move goes on");
	unlike(slurp_file($node->logfile, $log), qr/starts the copy/, "a backup at $name: it was this copy");
	$node->safe_psql('postgres', "UPDATE kept SET s = md5(s) WHERE i % 1000 = 8");
	next_backup("behind $name");
	is(incremental_files("behind $name"), 1, "a backup behind $name: of the index it has only the changes");
	$at{"in $name"} = $swapped ? $to : $from;
	$at{"behind $name"} = $to;
}
verdict_ok($node, 'kept', 'the primary', max_keys => 200);
files_ok($node, 'the primary');

# ---- restored ----------------------------------------------------------------------
# last backup of the chain, is there an unfinished move in it
foreach my $case (
	[ 'behind log-once', 0 ], [ 'behind copy-logged', 0 ], [ 'in copy-half', 1 ], [ 'behind swap-copied', 0 ],
	[ 'in old-file-step', 1 ], [ 'behind old-file-step', 0 ])
{
	my ($name, $unfinished) = @$case;
	my @prior;
	foreach my $backup (@chain)
	{
		last if $backup eq $name;
		push @prior, $backup;
	}
	(my $node_name = $name) =~ s/\W+/_/g;
	my $other = PostgreSQL::Test::Cluster->new($node_name);
	$other->init_from_backup($node, $name, combine_with_prior => \@prior, standby => 0);
	backup_ok($other, $other->data_dir, "$name, put together");
	$other->start;
	poll_until($other, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');

	is(tablespace_of_index($other, 'kept_s'), $at{$name}, "$name: where the index is");
	if ($name eq 'behind log-once')
	{
		my $verdict = $other->safe_psql('postgres', "SELECT oracle.verdict('kept', 100)");
		like($verdict, qr/^0 right;/, 'without logging once more after a checkpoint, the restored index is not right')
		  or diag $verdict;
		$other->teardown_node;
		$other->clean_node;
		next;
	}
	is($other->safe_psql('postgres', 'SELECT count(*) FROM index_mover_ledger'), $unfinished,
		"$name: what the ledger knows");
	$other->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	files_ok($other, "$name, after a clean-up");
	verdict_ok($other, 'kept', $name, max_keys => 100);
	my $to = other_place($at{$name});
	is( $other->safe_psql('postgres',
			"SELECT status FROM move_indexes('kept_s', '$to', method => 'copy', settings => '{\"pacing\": \"off\", \"verify\": \"on\"}')"),
		'moved', "$name: a move works");
	leftovers_ok($other, $name, within => 5);
	files_ok($other, "$name, after a move");
	amcheck_ok($other, $name);
	$other->teardown_node;
	$other->clean_node;
}

$node->stop;
done_testing();
