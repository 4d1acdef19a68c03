# Autovacuum as eager as it can be, beside moves of a table that is written to all
# the time: a copy lets it pass, stands still while it removes entries from the index,
# and is exact; a rebuild keeps it out, is not disturbed by it, and lets it back in.
# (One that is in the way of a copy's swap, or there against wraparound: t/042_control_blockers.pl,
# t/043_control_low_priority.pl.)
#
# Fault (replication): autovacuum as eager as it can be, beside copies and rebuilds of a table
#   that is written to (it is off elsewhere); in the way of a move; against wraparound (also 042,
#   043)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Probe;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $node = new_node('autovacuum', conf => <<CONF);
autovacuum = on
autovacuum_naptime = 1s
autovacuum_max_workers = 4
autovacuum_vacuum_threshold = 0
autovacuum_vacuum_scale_factor = 0
autovacuum_vacuum_insert_threshold = 0
autovacuum_vacuum_insert_scale_factor = 0
autovacuum_analyze_threshold = 0
autovacuum_analyze_scale_factor = 0
autovacuum_vacuum_cost_delay = 0
log_autovacuum_min_duration = 0
deadlock_timeout = 300ms
CONF
$node->safe_psql('postgres', <<SQL);
CREATE TABLE av (i int PRIMARY KEY, s text) WITH (fillfactor = 70);
INSERT INTO av SELECT g, md5(g::text) FROM generate_series(1, 5000) g;
CREATE INDEX av_s ON av (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('av');
-- so many pages that a vacuum which rests at each takes a minute
CREATE TABLE slow (i int, s text) WITH (autovacuum_enabled = off, fillfactor = 10);
INSERT INTO slow SELECT g, repeat('x', 500) FROM generate_series(1, 1000) g;
CREATE INDEX slow_i ON slow (i) TABLESPACE regress_slow;
SELECT oracle.remember_keys('slow');
SQL

my $survived = 0;

# The call, which does not wait: the snapshot of one that does would keep autovacuum
# from removing anything.
sub move
{
	my ($index, $method) = @_;
	my $to = elsewhere($node, $index);
	return "SELECT max(job) FROM move_indexes('$index', '$to', method => '$method', wait => false, settings => '{\"verify\": true}')";
}

sub moved_ok
{
	my ($job, $name) = @_;
	wait_for_job_end($node, $job);
	return is($node->safe_psql('postgres', "SELECT DISTINCT status, sqlstate FROM index_mover_history WHERE job = $job"), 'moved|',
		"$name: moved");
}

my $vacuumed = qr/automatic vacuum of table "postgres\.public\.av": index scans: [1-9]/;

foreach my $case (
	[ 'copy', 'copy-half', $vacuumed ],
	[ 'copy', 'copy-synced', $vacuumed ],
	[ 'rebuild', 'rebuild-step-committed', qr/skipping vacuum of "av" --- lock not available/ ])
{
	my ($method, $point, $seen) = @$case;
	my $name = "$method, autovacuum at $point";
	my $load = IndexMover::Probe->new($node, write => "\\set i random(1, 5000)\nUPDATE av SET s = md5(s || :i) WHERE i = :i");
	my $call = held_at($node, $point, move('av_s', $method));
	my (undef, $job) = finish_call($call);
	# the first that has ended since may have begun before
	my $log = -s $node->logfile;
	$log = $node->wait_for_log($seen, $log) for 1 .. ($method eq 'copy' ? 2 : 1);
	pass("$name: it was there");
	let_go($call);
	moved_ok($job, $name);
	if ($method eq 'rebuild')
	{
		$node->wait_for_log($vacuumed, -s $node->logfile);
		pass("$name: and it has come back");
	}
	my $felt = $load->end;
	is_deeply($felt->{write}{errors}, {}, "$name: $felt->{write}{transactions} transactions of others, none failed");
	cmp_ok($felt->{write}{transactions}, '>', 0, "$name: and there were some");
	# what is written down about the index's statistics is autovacuum's to change
	$survived++ if all_right($node, 'av', $name, within => 5, no_metadata => 1);
}

# ---- one that holds the lock which a rebuild needs gives way --------------------------------
$node->safe_psql('postgres', <<SQL);
DELETE FROM slow WHERE i % 10 = 0;
ALTER TABLE slow SET (autovacuum_enabled = on, autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1);
SQL
poll_until($node, "SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.relation = 'slow'::regclass AND "
	. "a.backend_type = 'autovacuum worker'", 't', 'an autovacuum of the table');
my $log = -s $node->logfile;
moved_ok($node->safe_psql('postgres', move('slow_i', 'rebuild')), 'a rebuild where a slow autovacuum is at work');
ok($node->log_contains(qr/canceling autovacuum task/, $log), 'it gave way');
$node->safe_psql('postgres', 'ALTER TABLE slow SET (autovacuum_enabled = off)');
$survived++ if all_right($node, 'slow', 'a slow autovacuum', within => 5, no_metadata => 1);

# ---- one of a TOAST table alone, which is in the way of the swap of its table -----------------
$node->safe_psql('postgres', <<SQL);
CREATE TABLE long (i int, s text) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off) TABLESPACE regress_slow;
ALTER TABLE long ALTER s SET STORAGE external;
INSERT INTO long SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 2000) g;
DELETE FROM long WHERE i % 10 = 0;
ALTER TABLE long SET (toast.autovacuum_enabled = on, toast.autovacuum_vacuum_cost_delay = 100, toast.autovacuum_vacuum_cost_limit = 1);
SQL
poll_until($node, "SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.relation = (SELECT reltoastrelid FROM "
	. "pg_class WHERE oid = 'long'::regclass) AND a.backend_type = 'autovacuum worker'",
	't', 'an autovacuum of the TOAST table');
is($node->safe_psql('postgres',
	"SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.relation = 'long'::regclass AND a.backend_type = "
		. "'autovacuum worker'"), '0', 'and of that alone');
$log = -s $node->logfile;
moved_ok($node->safe_psql('postgres', "SELECT max(job) FROM move_table('long', 'regress_fast', wait => false)"),
	'a table where a slow autovacuum of its TOAST table is at work');
ok($node->log_contains(qr/canceling autovacuum task/, $log), 'it gave way');
is($node->safe_psql('postgres', "SELECT count(*), count(*) FILTER (WHERE s = repeat(md5(i::text), 100)) FROM long"), '1800|1800',
	'each value is what it was');
$node->safe_psql('postgres', 'ALTER TABLE long SET (toast.autovacuum_enabled = off)');

$node->safe_psql('postgres', 'ALTER SYSTEM SET autovacuum = off');
$node->reload;
moved_ok($node->safe_psql('postgres', move('av_s', 'copy')), 'the next one');
verdict_ok($node, 'av', 'at the end');

note "count: moves beside an eager autovacuum, survived $survived";
$node->stop;
done_testing();
