# pg_rewind: the standby takes over in the middle of a move, the old primary goes
# on with it to the end on its own, and comes back as the standby.
#
# Fault (replication): pg_rewind, after the standby took over in mid-copy and under the
#   exclusive lock
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Tables;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
needs_faults();

my $old = new_node('old', streaming => 1, conf => "wal_log_hints = on\nwal_keep_size = 512MB\ncheckpoint_timeout = 1h\nmax_wal_size = 1GB");
my $changes = 0;
foreach my $table ('half', 'locked')
{
	$old->safe_psql('postgres', <<SQL);
CREATE TABLE $table (i int, s text) WITH (fillfactor = 80);
INSERT INTO $table SELECT g, md5(g::text) FROM generate_series(1, 20000) g;
CREATE INDEX ${table}_s ON $table (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('$table'), oracle.remember_metadata('$table');
SQL
}
make_table($old, 'heap', 800);
$old->backup('start');
my $new = PostgreSQL::Test::Cluster->new('new');
$new->init_from_backup($old, 'start', has_streaming => 1);
$new->start;

# of an index, and of a table; behind the swap, too
foreach my $case ([ 'half', 'copy-half' ], [ 'locked', 'swap-before-commit' ], [ 'heap', 'copy-half' ], [ 'heap', 'swap-before-commit' ],
	[ 'heap', 'swapped' ])
{
	my ($table, $point) = @$case;
	my $is_table = $table eq 'heap';
	my $name = "taken over at $point" . ($is_table ? ', a table' : '');
	my $place = $is_table ? (split / /, places_of_table($old, $table))[0] : 'regress_slow';
	my $move = $is_table
	  ? sprintf("SELECT string_agg(DISTINCT status, ',') FROM move_table('heap', '%s')", other_place($place))
	  : "SELECT status FROM move_indexes('${table}_s', 'regress_fast', method => 'copy')";
	my $call = held_at($old, $point, $move);
	# what is inserted is flushed, too
	$old->safe_psql('postgres', 'SELECT txid_current()');
	$old->wait_for_catchup($new, 'replay', $old->lsn('insert'));
	$new->promote;
	poll_until($new, 'SELECT pg_is_in_recovery()', 'f', 'promotion');
	$new->safe_psql('postgres', 'CHECKPOINT');
	# the two go separate ways
	let_go($call);
	is((finish_call($call))[1], "moved\n", "$name: the old primary moves");
	foreach my $node ($old, $new)
	{
		$changes++;
		if ($is_table) { change_table($node, $table, $changes) }
		else { $node->safe_psql('postgres', "UPDATE $table SET s = md5(s) WHERE i % 50 = $changes") }
	}
	$old->stop;
	# (from a server that runs, it cannot take tablespaces that are directories in pg_tblspc)
	$new->stop;

	# it takes the other's files along, settings too
	my $settings = slurp_file($old->data_dir . '/postgresql.conf');
	command_ok([ 'pg_rewind', '--target-pgdata', $old->data_dir, '--source-pgdata', $new->data_dir ], "$name: pg_rewind");
	unlink $old->data_dir . '/postgresql.conf';
	append_to_file($old->data_dir . '/postgresql.conf', $settings);
	$new->start;
	$old->enable_streaming($new);
	$old->set_standby_mode;
	$old->start;

	# what the new primary has of the move, it removes, here and there
	is( (split / /, $is_table ? places_of_table($new, $table) : tablespace_of_index($new, "${table}_s"))[0],
		$point eq 'swapped' ? other_place($place) : $place, "$name: where it is on the new primary");
	$new->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($new);
	leftovers_ok($new, $name, within => 5);
	files_ok($new, $name);
	if ($is_table)
	{
		table_ok($new, $table, $name);
		same_table_ok($new, $old, $table, "$name, rewound");
	}
	else
	{
		verdict_ok($new, $table, $name, max_keys => 200);
		metadata_ok($new, $table, $name, restarted => 1);
	}
	standby_ok($new, $old, [ 'half', 'locked' ], "$name, rewound", max_keys => 200);
	# (after the swap of a table, all three of it are there)
	is($new->safe_psql('postgres', $move), $is_table && $point eq 'swapped' ? 'skipped' : 'moved', "$name: the next call works");
	same_table_ok($new, $old, $table, "$name, rewound, after the next move") if $is_table;
	standby_ok($new, $old, [ 'half', 'locked' ], "$name, rewound, after the next move", max_keys => 200);
	count_fault('servers rewound in mid-copy');
	($old, $new) = ($new, $old);
}

$_->stop foreach $new, $old;
done_testing();
