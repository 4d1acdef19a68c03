# Moves of a table that others follow: a standby and a standby of that have the same
# pages, visibility maps included; a logical subscriber has the same rows; a standby that
# is promoted, a backup, a chain of incremental backups, a point in time and a rewound
# server in the middle of a copy have a table that is right, wherever it is; and a query
# of a standby that is in the way of the swap is canceled there, as documented.
#
# Fault (tables): standby and cascaded standby, logical subscriber, a query of the standby,
#   promotion, backups, recovery to a point in time; pg_rewind (also 038)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Tables;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $has_incremental = `pg_config --version` =~ /PostgreSQL (\d+)/ && $1 >= 17;
# no checksums, and no WAL for hints: what is not logged then is most
my $primary = new_node('primary', streaming => 1, extra => $has_incremental && `pg_config --version` =~ / (?:1[89]|2)/
	? ['--no-data-checksums'] : [],
	conf => <<CONF . ($has_incremental ? "summarize_wal = on\n" : ''));
wal_level = logical
wal_log_hints = off
wal_keep_size = 1GB
max_wal_size = 4GB
checkpoint_timeout = 1h
wal_retrieve_retry_interval = 100ms
archive_mode = on
archive_command = 'true'
CONF
$primary->enable_archiving;
$primary->restart;
is($primary->safe_psql('postgres', 'SHOW data_checksums'), 'off', 'data checksums are off');
make_table($primary, 'heap', 1200);
$primary->safe_psql('postgres', "LOAD 'index_mover'");

$primary->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', "hot_standby_feedback = off\nmax_standby_streaming_delay = 1s\narchive_mode = off");
$standby->start;
$standby->backup('cascade');
my $cascade = PostgreSQL::Test::Cluster->new('cascade');
$cascade->init_from_backup($standby, 'cascade', has_streaming => 1);
$cascade->append_conf('postgresql.conf', 'archive_mode = off');
$cascade->start;

my $subscriber = PostgreSQL::Test::Cluster->new('subscriber');
$subscriber->init;
$subscriber->start;
$subscriber->safe_psql('postgres', 'CREATE TABLE heap (id int PRIMARY KEY, v int NOT NULL, filler text NOT NULL, big text)');
$primary->safe_psql('postgres', 'CREATE PUBLICATION heap FOR TABLE heap');
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION heap CONNECTION 'host=" . $primary->host . ' port=' . $primary->port
	. " dbname=postgres' PUBLICATION heap");
$subscriber->wait_for_subscription_sync($primary, 'heap');

my $changes = 0;
sub target { return other_place((split / /, places_of_table($primary, 'heap'))[0]); }

# ---- moves there and back, beside changes of all kinds ---------------------------------
foreach my $round (1 .. (faults() ? 2 : 1))
{
	my $to = target();
	my $again = 'SELECT coalesce(sum(blocks_recopied), 0) FROM index_mover_history';
	my $call = start_call($primary, 'mover',
		"SELECT string_agg(DISTINCT status, ',') FROM move_table('heap', '$to', indexes => true, settings => "
			. "'{\"max_rate\": \"6MB\"}')");
	do { change_table($primary, 'heap', ++$changes); freeze_table($primary, 'heap') if $changes % 3 == 0 } while (call_is_running($call));
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved\n", "round $round: moved") or diag $err;
	is(places_of_table($primary, 'heap'), all_at($to), "round $round: where it is");
	table_ok($primary, 'heap', "round $round");
	$standby->wait_for_catchup($cascade, 'replay', $primary->lsn('insert'))
	  if $primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert')) || 1;
	same_table_ok($primary, $standby, 'heap', "round $round, standby", caught_up => 1);
	same_table_ok($primary, $cascade, 'heap', "round $round, standby of the standby", caught_up => 1);
	table_ok($_, 'heap', "round $round, " . $_->name, standby => 1) foreach $standby, $cascade;
	files_ok($_, "round $round, " . $_->name) foreach $primary, $standby, $cascade;
	$primary->wait_for_catchup('heap');
	my $rows = 'SELECT count(*), sum(hashtextextended(t::text, 0)), md5(string_agg(md5(t::text), NULL ORDER BY id)) FROM heap t';
	is($subscriber->safe_psql('postgres', $rows), $primary->safe_psql('postgres', $rows), "round $round, subscriber: the same rows");
}
my ($recopied, $moves) = split /\|/,
	$primary->safe_psql('postgres', "SELECT sum(blocks_recopied), count(*) FROM index_mover_history WHERE name = 'heap'");
cmp_ok($recopied, '>', $moves, 'blocks were changed after they were copied');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL'), '1',
	'the subscription is at work');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION heap');
$subscriber->stop;

# ---- a query of a standby ---------------------------------------------------------------
{
	my $reader = IndexMover::Session->new($standby);
	$reader->send("SELECT count(pg_sleep(100)) FROM (SELECT FROM heap LIMIT 5) h");
	poll_until($standby, 'SELECT count(*) > 0 FROM pg_locks WHERE pid = ' . $reader->pid . " AND relation = 'heap'::regclass", 't',
		'the query of the standby');
	my $to = target();
	is($primary->safe_psql('postgres', "SELECT string_agg(DISTINCT status, ',') FROM move_table('heap', '$to')"), 'moved',
		'beside a query of the standby: moved');
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	$reader->answer;
	like($reader->errors, qr/40001: canceling statement due to conflict with recovery/,
		'beside a query of the standby: it is canceled there');
	like($reader->errors, qr/DETAIL:  User was holding a relation lock for too long/,
		'beside a query of the standby: as any exclusive lock does');
	$reader->end;
	table_ok($standby, 'heap', 'behind a query of the standby', standby => 1);
}
$_->stop foreach $cascade, $standby;

# ---- another server that begins in the middle of a move --------------------------------
# It has the rows of that moment, which no session changes; the table is where it was or is.
sub other_ok
{
	my ($other, $name, $place, $unfinished, %options) = @_;
	poll_until($other, 'SELECT pg_is_in_recovery()', 'f', "$name: end of recovery");
	is(places_of_table($other, 'heap'), $place, "$name: where table, TOAST table and its index are");
	is($other->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), $unfinished, "$name: what the ledger knows");
	table_ok($other, 'heap', $name);
	$other->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	leftovers_ok($other, $name, within => 5);
	files_ok($other, $name);
	change_table($other, 'heap', 900);
	my $to = other_place((split / /, $place)[0]);
	is($other->safe_psql('postgres', "SELECT string_agg(DISTINCT status, ',') FROM move_table('heap', '$to')") =~ /moved/, 1,
		"$name: a move works");
	is(places_of_table($other, 'heap'), all_at($to), "$name: where it is then");
	table_ok($other, 'heap', "$name, moved");
	$other->teardown_node;
	$other->clean_node;
	return;
}

# Hold a move of the table at a point ("name:2", when it comes there for the second time),
# and call $do meanwhile.  Returns where the table is for a server that begins there, where
# it is in the end, and how many files are on record.
sub held_move
{
	my ($point, $do) = @_;
	my $from = (split / /, places_of_table($primary, 'heap'))[0];
	my $to = target();
	change_table($primary, 'heap', ++$changes);
	my $call = held_at($primary, $point, "SELECT string_agg(DISTINCT status, ',') FROM move_table('heap', '$to')");
	# what is inserted is flushed, too
	$primary->safe_psql('postgres', 'SELECT txid_current()');
	$do->();
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved\n", "$point: the primary moves") or diag $err;
	wait_for_no_worker($primary);
	my ($name, $time) = split /:/, $point;
	return (all_at($name =~ /^(?:swapped|prewarmed|old-file)/ ? $to : $from), $to, files_on_record($name, $time || 1));
}

my $n = 0;
foreach my $point (picked { /^(?:copy-half|swap-file-set:2|swap-before-commit|old-file-drop:2)$/ } 'points of a promotion',
	qw(copy-created copy-half copy-half:2 copy-synced swap-file-locked:2 swap-locked swap-file-set:2 swap-before-commit
		swapped prewarmed old-file-start old-file-drop old-file-drop:2))
{
	my $other = PostgreSQL::Test::Cluster->new('promoted' . $n++);
	$primary->backup("promoted$n");
	$other->init_from_backup($primary, "promoted$n", has_streaming => 1);
	$other->append_conf('postgresql.conf', 'archive_mode = off');
	$other->start;
	my ($place, undef, $unfinished) = held_move($point, sub {
			$primary->wait_for_catchup($other, 'replay', $primary->lsn('insert'));
			$other->promote;
		});
	other_ok($other, "promoted at $point", $place, $unfinished);
	count_fault('standby promoted in the middle of a copy of a table');
}

# ---- backups, and a point in time ------------------------------------------------------
$primary->backup('before');
my (%place, %unfinished);
my @points = picked { $_ eq 'copy-half' } 'points of a backup', qw(copy-half swap-copied swapped);
foreach my $point (@points)
{
	($place{$point}, $place{"after $point"}, $unfinished{$point}) = held_move($point, sub {
			$primary->backup($point);
			$primary->safe_psql('postgres', "SELECT pg_create_restore_point('at $point')");
			$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
		});
	$place{"after $point"} = all_at($place{"after $point"});
	change_table($primary, 'heap', ++$changes);
	$primary->safe_psql('postgres', "SELECT pg_create_restore_point('after $point')");
}
my $last = $primary->safe_psql('postgres', 'SELECT pg_walfile_name(pg_current_wal_lsn())');
$primary->safe_psql('postgres', 'SELECT pg_switch_wal(), txid_current()');
poll_until($primary, "SELECT last_archived_wal >= '$last' FROM pg_stat_archiver", 't', 'the archiver');
foreach my $case (map { [ $_, '', $_, $unfinished{$_} ], [ $_, "after $_", "after $_", 0 ],
	[ 'before', "at $_", $_, $unfinished{$_} ] } @points)
{
	my ($backup, $target, $at, $unfinished) = @$case;
	my $name = "backup $backup" . ($target ? ", recovered to $target" : '');
	my $other = PostgreSQL::Test::Cluster->new('restored' . $n++);
	$other->init_from_backup($primary, $backup, has_restoring => $target ne '', standby => 0);
	$other->append_conf('postgresql.conf', 'archive_mode = off');
	$other->append_conf('postgresql.conf', "recovery_target_name = '$target'\nrecovery_target_action = 'promote'") if $target;
	$other->start;
	other_ok($other, $name, $place{$at}, $unfinished);
	count_fault($target ? 'point-in-time recovery, copies of a table' : 'base backup in the middle of a copy of a table');
}

SKIP:
{
	skip 'incremental backups came with PostgreSQL 17', 1 unless $has_incremental;
	$primary->backup('full');
	my @chain = ('full');
	my %at;
	foreach my $point ('copy-half', 'swap-copied')
	{
		my $next = sub {
			my ($name) = @_;
			$primary->backup($name, backup_options => [ '--incremental', $primary->backup_dir . "/$chain[-1]/backup_manifest" ]);
			push @chain, $name;
		};
		my (undef, $to) = held_move($point, sub { $next->("in $point") });
		change_table($primary, 'heap', ++$changes);
		$next->("behind $point");
		$at{"behind $point"} = all_at($to);
	}
	foreach my $name ('behind copy-half', 'behind swap-copied')
	{
		my @prior;
		foreach (@chain) { last if $_ eq $name; push @prior, $_ }
		my $other = PostgreSQL::Test::Cluster->new('combined' . $n++);
		$other->init_from_backup($primary, $name, combine_with_prior => \@prior, standby => 0);
		$other->append_conf('postgresql.conf', 'archive_mode = off');
		$other->start;
		# nothing was written since
		same_table_ok($primary, $other, 'heap', "incremental backups, $name", caught_up => 1) if $name eq 'behind swap-copied';
		other_ok($other, "incremental backups, $name", $at{$name}, 0);
		count_fault('incremental backup in the middle of a copy of a table');
	}
}
$primary->stop;
done_testing();
