# Base backups and point-in-time recovery in the middle of a copy, incremental base
# backups there (PostgreSQL 17 and newer), and a backup in the middle of a rebuild: what
# is restored, or put together from a chain and restored, has the index where it was at
# that moment, right, and after a cleanup no file and no index too many.
#
# Fault (replication): base backup, point-in-time recovery in mid-copy; base backup in
#   mid-rebuild
# Fault (replication): incremental base backups in mid-copy (PostgreSQL 17 and newer)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Pages;
use IndexMover::Places;
use IndexMover::Programs;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $has_incremental = `pg_config --version` =~ /PostgreSQL (\d+)/ && $1 >= 17;
my $summarize = $has_incremental ? 'summarize_wal = on' : '';
# (every backup is a checkpoint; the WAL that the copy still has to read stays)
my $node = new_node('primary', streaming => 1, conf => <<CONF);
$summarize
checkpoint_timeout = 1h
max_wal_size = 2GB
wal_keep_size = 2GB
archive_mode = on
archive_command = 'true'
CONF
$node->enable_archiving;
$node->restart;
$node->safe_psql('postgres', <<SQL);
CREATE TABLE kept (i int, s text) WITH (fillfactor = 80);
INSERT INTO kept SELECT g, repeat(md5(g::text), 15) FROM generate_series(1, 36000) g;
CREATE INDEX kept_s ON kept (s) TABLESPACE regress_slow;
CREATE EXTENSION pageinspect;
SELECT oracle.remember_keys('kept'), oracle.remember_metadata('kept');
LOAD 'index_mover';
SQL
cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('kept_s')"),
	'>', 17 * 1024 * 1024, 'the old file is removed in more than one step');
$node->backup('before');
backup_ok($node, 'before', 'a backup before all');

# A move that stands still at a pause point; what is called there, and behind it.
# Says where the index was, and where it is.
sub move_with
{
	my ($point, $mutation, $in_the_middle, $behind, %options) = @_;
	my $name = $options{name} || $mutation || $point;
	my $direct_io = $options{direct_io} || 'auto';
	my $from = tablespace_of_index($node, 'kept_s');
	my $to = other_place($from);
	my $first = $options{first} || $point;
	set_tests($node, test_point => "$first:wait" . ($first ne $point ? ",$point:wait2" : ''), test_mutation => $mutation);
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $job = $node->safe_psql('postgres',
		"SELECT job FROM move_indexes('kept_s', '$to', method => 'copy', wait => false, settings => "
			. "'{\"pacing\": \"off\", \"direct_io\": \"$direct_io\"}')");
	$node->wait_for_log(qr/test point "$first": waiting/, $log);
	if ($first ne $point)
	{
		my $next = IndexMover::Session->new($node);
		$next->run('SELECT pg_advisory_lock(0, 5960)');
		my $log = -s $node->logfile;
		$gate->end;
		$node->wait_for_log(qr/test point "$point": waiting/, $log);
		$gate = $next;
	}
	# (under the exclusive lock no session can write to it)
	$node->safe_psql('postgres', "UPDATE kept SET s = md5(s) WHERE i % 1000 = 7") unless $point eq 'swap-copied';
	$in_the_middle->($name);
	$gate->end;
	$node->safe_psql('postgres', "CALL wait_for_move($job)");
	set_tests($node);
	is($node->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $job"),
		'moved', "a backup at $name: the move goes on");
	unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "a backup at $name: it was this copy");
	$node->safe_psql('postgres', "UPDATE kept SET s = md5(s) WHERE i % 1000 = 8");
	$behind->($name);
	return ($from, $to);
}

# What is restored: where the index is, what the ledger knows of an unfinished move,
# and that a cleanup and the next move leave all as it should be.
sub restored_ok
{
	my ($other, $name, $place, $unfinished, $log_once, %options) = @_;
	is(tablespace_of_index($other, 'kept_s'), $place, "$name: where the index is");
	if (my $pages = $options{pages})
	{
		cmp_ok(scalar @$pages, '>', 200, "$name: there are pages to compare");
		is(join(' ', different_pages($pages, [ pages_of($other, 'kept_s') ])), '', "$name: the same pages");
	}
	if ($log_once)
	{
		my $verdict = $other->safe_psql('postgres', "SELECT oracle.verdict('kept', 100)");
		like($verdict, qr/^0 right;/, 'without logging once more after a checkpoint, the restored index is not right')
		  or diag $verdict;
	}
	else
	{
		is($other->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), $unfinished,
			"$name: what the ledger knows");
		my $orphans = $other->safe_psql('postgres', 'SELECT count(*) FROM oracle.files()');
		cmp_ok($orphans, '>', 0, "$name: there is a file too many") if $unfinished;
		$other->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
		files_ok($other, "$name, after a cleanup");
		verdict_ok($other, 'kept', $name, max_keys => 100, large => $options{large});
		my $to = other_place($place);
		is( $other->safe_psql('postgres',
				"SELECT status FROM move_indexes('kept_s', '$to', method => 'copy', settings => "
					. "'{\"pacing\": \"off\", \"verify\": \"on\"}')"),
			'moved', "$name: a move works");
		leftovers_ok($other, $name, within => 5);
		files_ok($other, "$name, after a move");
		metadata_ok($other, 'kept', $name, restarted => 1);
		amcheck_ok($other, $name);
		count_fault($options{count}) if $options{count};
	}
	$other->teardown_node;
	$other->clean_node;
	return;
}

# ---- moves, each with a backup and a restore point in the middle -------------------
# point, is the swap done by then, what is left out, direct_io
# (a megabyte is logged in several records, the first of which comes before copy-logging;
# with direct_io it is written in the background, and logged again when that has ended)
my %picked = map { $_ => 1 } qw(copy-logged copy-half old-file-step);
my @points = picked { $picked{ $_->[2] || $_->[0] } } 'points of a backup', ([ 'copy-logged', 0, 'log-once' ], [ 'copy-logged', 0 ],
	[ 'copy-logged', 0, 'log-once', 'on' ], [ 'copy-logged', 0, '', 'on' ], [ 'copy-logging', 0 ], [ 'copy-half', 0 ], [ 'swap-copied', 0 ],
		[ 'old-file-step', 1 ]);
my %at;
foreach my $case (@points)
{
	my ($point, $swapped, $mutation, $direct_io) = @$case;
	my $name = ($mutation || $point) . ($direct_io ? '-direct' : '');
	my ($from, $to) = move_with(
		$point,
		$mutation,
		sub {
			my ($name) = @_;
			# pg_basebackup waits for a checkpoint, copies the half-made file, and ends
			$node->backup($name);
			backup_ok($node, $name, "a backup at $name");
			$node->safe_psql('postgres', "SELECT pg_create_restore_point('at $name')");
			$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
		},
		sub { $node->safe_psql('postgres', "SELECT pg_create_restore_point('after $_[0]')"); },
		name => $name,
		direct_io => $direct_io);
	$at{$name} = { at => $swapped ? $to : $from, after => $to };
	# no session has read it since it was copied
	$at{$name}{pages} = [ pages_of($node, 'kept_s') ] if $point eq 'copy-logging';
}
verdict_ok($node, 'kept', 'the primary', max_keys => 200);
files_ok($node, 'the primary');
my $last = $node->safe_psql('postgres', 'SELECT pg_walfile_name(pg_current_wal_lsn())');
$node->safe_psql('postgres', 'SELECT pg_switch_wal(), txid_current()');
poll_until($node, "SELECT last_archived_wal >= '$last' FROM pg_stat_archiver", 't', 'the archiver');

# ---- restored ----------------------------------------------------------------------
# name, backup, restore point or '' for the end of the backup, where the index is,
# is there an unfinished move
foreach my $case (
	picked { $picked{ $_->[1] } && $_->[0] !~ /recovered to after/ || $_->[2] =~ /copy-logged|at copy-half/ } 'ways to restore',
	[ 'backup at copy-half', 'copy-half', '', $at{'copy-half'}{at}, 1 ],
	[ 'backup at old-file-step', 'old-file-step', '', $at{'old-file-step'}{at}, 1 ],
	[ 'log-once', 'log-once', 'after log-once', $at{'log-once'}{after}, 0 ],
	[ 'backup between log and file, recovered to after the move', 'copy-logged', 'after copy-logged', $at{'copy-logged'}{after}, 0 ],
	[ 'log-once-direct', 'log-once-direct', 'after log-once-direct', $at{'log-once-direct'}{after}, 0 ],
	[ 'backup before a write in the background', 'copy-logged-direct', 'after copy-logged-direct', $at{'copy-logged-direct'}{after}, 0 ],
	[ 'backup between two records of a megabyte, recovered to after the move', 'copy-logging', 'after copy-logging',
		$at{'copy-logging'}{after}, 0 ],
	[ 'backup at copy-half, recovered to after the move', 'copy-half', 'after copy-half', $at{'copy-half'}{after}, 0 ],
	[ 'backup under the exclusive lock, recovered to after the move', 'swap-copied', 'after swap-copied', $at{'swap-copied'}{after}, 0 ],
	[ 'backup before all, recovered to copy-half', 'before', 'at copy-half', $at{'copy-half'}{at}, 1 ],
	[ 'backup before all, recovered to under the exclusive lock', 'before', 'at swap-copied', $at{'swap-copied'}{at}, 1 ],
	[ 'backup before all, recovered to old-file-step', 'before', 'at old-file-step', $at{'old-file-step'}{at}, 1 ])
{
	my ($name, $backup, $target, $place, $unfinished) = @$case;
	(my $node_name = $name) =~ s/\W+/_/g;
	my $other = PostgreSQL::Test::Cluster->new(substr($node_name, 0, 40) . '_' . length($name));
	# not a standby, but as a backup is restored
	$other->init_from_backup($node, $backup, has_restoring => $target ne '', standby => 0);
	$other->append_conf('postgresql.conf', "archive_mode = off");
	$other->append_conf('postgresql.conf', "recovery_target_name = '$target'\nrecovery_target_action = 'promote'")
	  if $target;
	$other->start;
	poll_until($other, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');

	restored_ok(
		$other, $name, $place, $unfinished, ($name =~ /^log-once/ ? 1 : 0),
		pages => $target =~ /^after (.*)$/ && $at{$1}{pages},
		large => 1,
		count => $target ? 'point-in-time recovery, copies' : 'base backup in mid-copy');
}

# ---- incremental backups -------------------------------------------------------------
SKIP:
{
	skip 'incremental backups came with PostgreSQL 17', 1 unless $has_incremental;

	# Take the next backup of the chain: only what has changed since the last one.
	my @chain;
	my $next_backup = sub {
		my ($name) = @_;
		my @since = map { ('--incremental', $node->backup_dir . "/$_/backup_manifest") } @chain ? $chain[-1] : ();
		$node->backup($name, backup_options => \@since);
		backup_ok($node, $name, "the backup \"$name\"");
		push @chain, $name;
	};

	# Files of a backup that hold only changes, in the directories of tablespaces.
	my $incremental_files = sub {
		my ($name) = @_;
		(my $dir = $node->backup_dir . "/$name") =~ s/([\s\\*?{}\[\]~])/\\$1/g;
		my @files = glob("$dir/pg_tblspc/*/PG_*/*/INCREMENTAL.*");
		return scalar @files;
	};

	$next_backup->('full');

	# Moves, each with an incremental backup in the middle and one behind it: point, is
	# the swap done by then, what is left out.  At copy-logged, some blocks of the second
	# half are logged, and not written yet.  (A file of which nearly all has changed
	# since the last backup goes into the next one whole.)
	my %at;
	foreach my $case ([ 'copy-logged', 0, 'log-once' ], [ 'copy-logged', 0 ], [ 'copy-half', 0 ], [ 'swap-copied', 0 ],
		[ 'old-file-step', 1 ])
	{
		my ($point, $swapped, $mutation) = @$case;
		my $name = $mutation || $point;
		my ($from, $to) = move_with(
			$point, $mutation,
			sub { $next_backup->("in $name") },
			sub {
				$next_backup->("behind $name");
				is($incremental_files->("behind $name"), 1, "a backup behind $name: of the index it has only the changes");
			},
			first => $point eq 'copy-logged' ? 'copy-half' : $point);
		$at{"in $name"} = $swapped ? $to : $from;
		$at{"behind $name"} = $to;
	}
	verdict_ok($node, 'kept', 'the primary, incremental backups', max_keys => 200);
	files_ok($node, 'the primary, incremental backups');

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
		$other->append_conf('postgresql.conf', 'archive_mode = off');
		backup_ok($other, $other->data_dir, "$name, put together");
		$other->start;
		poll_until($other, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');
		restored_ok($other, $name, $at{$name}, $unfinished, $name eq 'behind log-once');
	}
}

# ---- a backup in the middle of a rebuild ---------------------------------------------
{
	my $name = 'backup in mid-rebuild';
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE built (i int PRIMARY KEY, s text);
INSERT INTO built SELECT g, md5(g::text) FROM generate_series(1, 3000) g;
CREATE INDEX built_s ON built (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('built'), oracle.remember_metadata('built');
SQL
	my $rebuild = "SELECT status FROM move_indexes('built_s', 'regress_fast', method => 'rebuild')";
	my $call = held_at($node, 'rebuild-entry-committed', $rebuild);
	$node->backup('rebuild');
	backup_ok($node, 'rebuild', $name);
	let_go($call);
	is((finish_call($call))[1], "moved\n", "$name: the move goes on");

	my $other = PostgreSQL::Test::Cluster->new('rebuild_restored');
	$other->init_from_backup($node, 'rebuild', standby => 0);
	$other->append_conf('postgresql.conf', 'archive_mode = off');
	$other->start;
	poll_until($other, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');
	is($other->safe_psql('postgres', 'SELECT count(*) FROM pg_index WHERE NOT indisvalid'), '1',
		"$name: it has an index that is not valid");
	is($other->safe_psql('postgres', 'SELECT kind FROM index_mover.ledger'), 'i', "$name: it is on record");
	is($other->safe_psql('postgres', 'SELECT kind, action FROM index_mover_cleanup()'), 'invalid index|removed',
		"$name: index_mover_cleanup() removes it");
	survived_ok($other, 'built', $name, $rebuild, max_keys => 200, restarted => 1, count => 'base backup in mid-rebuild');
	verdict_ok($other, 'built', "$name, after a move", max_keys => 200);
	amcheck_ok($other, $name);
	$other->teardown_node;
	$other->clean_node;
}

$node->stop;
done_testing();
