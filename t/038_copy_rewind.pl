# pg_rewind: the standby takes over in the middle of a move, the old primary goes
# on with it to the end on its own, and comes back as the standby.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
needs_faults();

my $old = new_node('old', streaming => 1, conf => "wal_log_hints = on\nwal_keep_size = 512MB\ncheckpoint_timeout = 1h\nmax_wal_size = 1GB");
foreach my $table ('half', 'locked')
{
	$old->safe_psql('postgres', <<SQL);
CREATE TABLE $table (i int, s text) WITH (fillfactor = 80);
INSERT INTO $table SELECT g, md5(g::text) FROM generate_series(1, 20000) g;
CREATE INDEX ${table}_s ON $table (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('$table'), oracle.remember_metadata('$table');
SQL
}
$old->backup('start');
my $new = PostgreSQL::Test::Cluster->new('new');
$new->init_from_backup($old, 'start', has_streaming => 1);
$new->start;

foreach my $case ([ 'half', 'copy-half' ], [ 'locked', 'swap-before-commit' ])
{
	my ($table, $point) = @$case;
	my $name = "taken over at $point";
	my $call = held_at($old, $point, "SELECT status FROM move_indexes('${table}_s', 'regress_fast', method => 'copy')");
	$old->wait_for_catchup($new, 'replay', $old->lsn('insert'));
	$new->promote;
	poll_until($new, 'SELECT pg_is_in_recovery()', 'f', 'promotion');
	$new->safe_psql('postgres', 'CHECKPOINT');
	# the two go separate ways
	let_go($call);
	is((finish_call($call))[1], "moved\n", "$name: the old primary moves");
	$old->safe_psql('postgres', "UPDATE $table SET s = md5(s) WHERE i % 50 = 1");
	$new->safe_psql('postgres', "UPDATE $table SET s = md5(s) WHERE i % 50 = 2");
	$old->stop;
	# (from a server that runs, it can't take tablespaces that are folders in pg_tblspc)
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
	is($new->safe_psql('postgres', "SELECT tablespace FROM pg_indexes WHERE indexname = '${table}_s'"), 'regress_slow', "$name: not moved on the new primary");
	$new->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($new);
	leftovers_ok($new, $name, within => 5);
	files_ok($new, $name);
	verdict_ok($new, $table, $name, max_keys => 200);
	metadata_ok($new, $table, $name, restarted => 1);
	standby_ok($new, $old, [ 'half', 'locked' ], "$name, rewound", max_keys => 200);
	is($new->safe_psql('postgres', "SELECT status FROM move_indexes('${table}_s', 'regress_fast', method => 'copy')"), 'moved', "$name: the next call works");
	standby_ok($new, $old, [ 'half', 'locked' ], "$name, rewound, after the next move", max_keys => 200);
	count_fault('servers rewound in mid-copy');
	($old, $new) = ($new, $old);
}

$_->stop foreach $new, $old;
done_testing();
