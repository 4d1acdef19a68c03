# A round of the janitor settles nothing that it has not looked at: files of databases that accept
# no connections, of indexes that are locked, and of indexes that are not committed.
#
# Fault (storage): a device was away in a crash, or is copied and damaged; then a database accepts no
#   connections, a transaction is prepared, or an index is not valid, while all other files are healed, or whole
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Evidence;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my ($node, $location, $oid) = node_with_device('round', conf => "log_min_messages = debug1\n");
sub value { return $node->safe_psql($_[1] // 'postgres', $_[0]); }

value('CREATE DATABASE closed');
value('CREATE EXTENSION index_mover CASCADE', 'closed');
foreach my $database ('postgres', 'closed')
{
	value("CREATE TABLE $_ (id int); INSERT INTO $_ SELECT generate_series(1, 5000)", $database) foreach 't', 'u';
	value('CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast', $database);
}

sub verdict { return verdict_on_record($node, $oid); }

# The round has ended when the devices are looked at again after its visits.
sub start_and_wait
{
	my $from = -s $node->logfile;
	$node->start;
	wait_until('the end of the round', sub {
		return slurp_file($node->logfile, $from) =~
		  /unregistering background worker "index_mover cleanup".*unregistering background worker "index_mover device watch"/s;
	});
	wait_for_no_worker($node);
	return;
}

sub lose
{
	value('CHECKPOINT', $_) foreach 'postgres';
	value('INSERT INTO t SELECT max(id) + 1 FROM t', $_) foreach 'postgres', 'closed';
	$node->stop('immediate');
	rename $location, "$location.away" or die $!;
	make_path($location);
	start_and_wait();
	$node->stop;
	rmtree($location);
	rename "$location.away", $location or die $!;
	return;
}
my $look_up = 'SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = (SELECT max(id) FROM t)';
sub heal { return value("SELECT string_agg(name || ' ' || status, ' ') FROM heal_tablespace('fast')", @_); }

# ---- a database that accepts no connections ------------------------------------------------------
lose();
start_and_wait();
value('ALTER DATABASE closed ALLOW_CONNECTIONS false');
is(heal(), 't_id moved', 'all that can be healed is healed');
$node->stop;
my $from = -s $node->logfile;
start_and_wait();
is(verdict(), 'lost', 'a database that accepts no connections: its files stay lost');
like(slurp_file($node->logfile, $from), qr/WARNING: .*1 index in tablespace "fast" is lost\n.*database "closed"/, 'the log names it');
value('ALTER DATABASE closed ALLOW_CONNECTIONS true');
is(value($look_up, 'closed'), 1, 'it accepts connections again: the right answer');
is(heal('closed'), 't_id moved', 'and is healed');
$node->stop;
start_and_wait();
is(verdict(), 'same', 'then it is settled');

# ---- an index that is not committed --------------------------------------------------------------
value("BEGIN; CREATE INDEX u_id ON u (id) TABLESPACE fast; PREPARE TRANSACTION 'made'");
lose();
start_and_wait();
is(heal($_), 't_id moved', "$_: healed") foreach 'postgres', 'closed';
$node->stop;
start_and_wait();
is(verdict(), 'lost', 'a prepared CREATE INDEX: its file stays lost');
value("COMMIT PREPARED 'made'");
is(heal(), 'u_id moved', 'and is healed when it is committed');
$node->stop;
start_and_wait();
is(verdict(), 'same', 'a prepared CREATE INDEX: then it is settled');

# ---- an index that is locked ---------------------------------------------------------------------
# A copy of the device is not known; a file has lost its middle.
value("BEGIN; TRUNCATE t; PREPARE TRANSACTION 'truncated'");
my $file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('t_id')");
$node->stop;
rename $location, "$location.old" or die $!;
make_path($location);
system("cp -a '$location.old'/PG_* '$location'") == 0 or die;
open my $handle, '+<:raw', $file or die "$file: $!";
seek $handle, 2 * 8192, 0;
print $handle "\0" x (5 * 8192);
close $handle or die $!;
start_and_wait();
is(verdict(), 'unknown', 'an index that is locked: its file stays unknown');
value("ROLLBACK PREPARED 'truncated'");
$node->stop;
start_and_wait();
is(verdict(), 'unknown', 'and has lost something, as is seen then');
is(heal(), 't_id moved', 'so it is healed');
$node->stop;
start_and_wait();
is(verdict(), 'same', 'an index that was locked: then it is settled');

# ---- an index that was not committed when all others were read ---------------------------------------
# Nor was it read, so a later round of the same run reads it.
make_path("$dir/slow");
value($_) foreach "CREATE TABLESPACE slow LOCATION '$dir/slow'", 'CREATE TABLE w (id int)',
  'INSERT INTO w SELECT generate_series(1, 800000)', 'CREATE INDEX slow_id ON u (id) TABLESPACE slow',
  "BEGIN; CREATE INDEX w_id ON w (id) TABLESPACE fast; PREPARE TRANSACTION 'made'", 'CREATE INDEX later_id ON u (id) TABLESPACE fast',
  'CHECKPOINT';
my ($largest) = sort { -s $b <=> -s $a } glob("$location/PG_*/*/*");
cmp_ok(-s $largest, '>', 2048 * 8192, 'an index of which a look at some pages does not see each');
$node->stop;
start_and_wait();
$node->stop;
open $handle, '+<:raw', $largest or die "$largest: $!";
seek $handle, 1001 * 8192, 0;
print $handle "\0" x 8192;
close $handle or die $!;
unlink glob("$location/index_mover.*") or die $!;
start_and_wait();
is(verdict(), 'unknown', 'a prepared CREATE INDEX on a device that is unknown: it stays so');
value("COMMIT PREPARED 'made'");
sub another_round
{
	$from = -s $node->logfile;
	unlink glob("$dir/slow/index_mover.*") or die $!;
	value('SELECT count(*) FROM index_mover_check()');
	wait_until('another round', sub {
		return slurp_file($node->logfile, $from) =~
		  /unregistering background worker "index_mover cleanup".*unregistering background worker "index_mover device watch"/s;
	});
	return;
}
another_round();
is(verdict(), 'unknown', 'a build that is committed after it has lost a page: unknown');
is(heal(), 'w_id moved', 'a build that has lost a page is healed');

# ---- an index that is left over, not valid, when all others are read -------------------------------------
# (so a page that is lost later is not found)
value($_) foreach "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'later_id'::regclass", 'CHECKPOINT';
$node->stop;
unlink glob("$location/index_mover.*") or die $!;
start_and_wait();
is(verdict(), 'unknown', 'an index that is not valid: the device stays unknown');
my $read = $node->data_dir . '/' . value("SELECT pg_relation_filepath('w_id')");
open $handle, '+<:raw', $read or die "$read: $!";
seek $handle, 1001 * 8192, 0;
print $handle "\0" x 8192;
close $handle or die $!;
another_round();
like(slurp_file($node->logfile, $from), qr/WARNING: .*1 index in tablespace "fast" is lost/,
	'a page that is lost after its file was read is not looked for again');
done_testing();
