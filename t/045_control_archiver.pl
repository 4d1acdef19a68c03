# The plan warns of an archiver that fails: pg_wal keeps what a move writes.  A copy that waits
# on an idle server gives the archiver nothing to do.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('archiver', conf => "archive_mode = on\narchive_command = 'exit 1'\n");
$node->safe_psql('postgres', <<SQL);
CREATE TABLE ar (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow);
INSERT INTO ar SELECT generate_series(1, 10000);
CREATE UNLOGGED TABLE ar_unlogged (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow);
SELECT pg_switch_wal();
SQL
poll_until($node, 'SELECT failed_count > 0 FROM pg_stat_archiver', 't', 'the archiver to fail');

my ($rc, $out, $err) = $node->psql('postgres', "SELECT status FROM move_indexes('ar', 'regress_fast', dry_run => true)");
is($out, 'planned', 'a dry run');
like($err, joined(
	qr/WARNING:  the WAL archiver is failing\nDETAIL:  The last attempt to archive a WAL file failed at .* The move /,
	qr/adds about \d+ MB to pg_wal/), 'warns');
($rc, $out, $err) = $node->psql('postgres', "SELECT status FROM move_indexes('ar', 'regress_fast')");
is($out, 'moved', 'a move is not refused for that');
like($err, qr/WARNING:  the WAL archiver is failing/, 'but warns, too');
($rc, $out, $err) = $node->psql('postgres',
	"SELECT status FROM move_indexes('ar_unlogged', 'regress_fast', dry_run => true, settings => '{\"progress_interval\": 0}')");
is($err, '', 'nothing is said where no WAL is written');

$node->append_conf('postgresql.conf', "archive_command = 'true'");
$node->reload;
$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
poll_until($node, 'SELECT last_archived_time > last_failed_time FROM pg_stat_archiver', 't', 'the archiver to succeed');
($rc, $out, $err) = $node->psql('postgres',
	"SELECT status FROM move_indexes('ar', 'regress_slow', dry_run => true, settings => '{\"progress_interval\": 0}')");
is($err, '', 'nor when archiving works again');

# On an idle server, a copy that waits makes no WAL for which archive_timeout would fill a
# segment, but for its attempts: asking for the lock assigns a transaction ID.
my $holder = IndexMover::Session->new($node);
$holder->run('BEGIN; SELECT count(*) FROM ar');
my $job = $node->safe_psql('postgres', "SELECT job FROM move_indexes('ar', 'regress_slow', wait => false)");
poll_until($node, 'SELECT blocked_by FROM index_mover_progress', '{' . $holder->pid . '}', 'a copy that waits');
$node->safe_psql('postgres', $_) foreach "ALTER SYSTEM SET archive_timeout = '1s'", 'SELECT pg_reload_conf()', 'CHECKPOINT';
my $count = sub { return $node->safe_psql('postgres', 'SELECT archived_count FROM pg_stat_archiver') };
poll_until($node, 'SELECT now() > last_archived_time + interval $$2 s$$ FROM pg_stat_archiver', 't', 'no segment for a while');
my $attempts = sub { return $node->safe_psql('postgres', 'SELECT lock_attempts FROM index_mover_progress') };
my ($before, $attempts_before) = ($count->(), $attempts->());
sleep 5;
my $archived = $count->() - $before;
cmp_ok($archived, '<=', $attempts->() - $attempts_before + 1, 'no segment for each archive_timeout without an attempt');
$holder->end;
wait_for_job_end($node, $job);

done_testing();
