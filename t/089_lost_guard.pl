# The guard of lost indexes: from the first statement of each session on, whatever it is, no
# session uses the old files, and what the device does fails no other query.
#
# Fault (storage): a device that was away in a crash comes back with whole, old files; a session
#   begins with COPY; the database or the index gets another ACL or name; the index is locked;
#   the device cannot be read; the synchronous standby is away; full_page_writes is off, and a
#   crash follows; a loss is found while sessions are connected, whose first statement is COPY or
#   has a cached plan, or in a transaction that lasts; the first page of a hash index cannot be
#   replaced, or recovery brings back the old page
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Evidence;
use IndexMover::Session;
use IndexMover::Storage;
use IndexMover::Test;
use POSIX qw(EIO);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
my $faults = preload_library('io_faults');

my $dir = PostgreSQL::Test::Utils::tempdir();
my ($node, $location, $oid) = node_with_device('guard', streaming => 1);
sub value { return $node->safe_psql('postgres', $_[0]); }

value(<<'SQL');
CREATE TABLE t (id int);
INSERT INTO t SELECT generate_series(1, 5000);
CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast;
SQL

sub verdict { return verdict_on_record($node, $oid); }

sub watched { return wait_until_watched($node); }

# A crash, a start without the device, and a start with its old files.
sub lose
{
	my ($settings) = @_;
	value('CHECKPOINT');
	value('INSERT INTO t SELECT max(id) + 1 FROM t');
	$node->stop('immediate');
	rename $location, "$location.away" or die $!;
	make_path($location);
	$node->start;
	watched();
	$node->stop;
	rmtree($location);
	rename "$location.away", $location or die $!;
	$node->append_conf('postgresql.conf', $settings // '');
	$node->start;
	return;
}

my $look_up = 'SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = (SELECT max(id) FROM t)';
my $insert = 'INSERT INTO t SELECT max(id) FROM t';

sub heal
{
	my ($name) = @_;
	is(value($look_up), 1, "$name: the right answer");
	isnt($node->psql('postgres', $insert), 0, "$name: no duplicate");
	is(value("SELECT string_agg(status, ' ') FROM heal_tablespace('fast')"), 'moved', "$name: healed");
	$node->restart;
	wait_until('settled', sub { verdict() eq 'same' });
	watched();
	isnt($node->psql('postgres', $insert), 0, "$name: healed, no duplicate");
	return;
}

# ---- the first statement is not planned, and the janitor has to wait -----------------------------
value("BEGIN; LOCK TABLE index_mover.ledger; PREPARE TRANSACTION 'ledger'");
my $newest = value('SELECT max(id) + 1 FROM t');
lose();
my ($rc, undef, $err) = $node->psql('postgres', "COPY t FROM PROGRAM 'echo $newest'");
like($err, qr/could not read block/, 'the first statement of the first session, COPY, gets no duplicate in');
value("ROLLBACK PREPARED 'ledger'");

# ---- files that are empty --------------------------------------------------------------------------
# (even an attempt to lock one exclusively would assign a transaction ID)
wait_for_no_worker($node);
my $next_xid = 'SELECT pg_snapshot_xmax(pg_current_snapshot())';
my $xid = value($next_xid);
is(value($next_xid), $xid, 'the files are empty: a connection assigns no transaction ID, and locks none of them') for 1 .. 2;

# ---- another ACL of the database, another name of the index --------------------------------------
value('GRANT CONNECT ON DATABASE postgres TO PUBLIC');
is(verdict(), 'lost', 'GRANT on the database: still lost');
is(value($look_up), 1, 'GRANT on the database: the right answer');
value('ALTER INDEX t_id RENAME TO t_key');
is(value($look_up), 1, 'another name: the right answer');
isnt($node->psql('postgres', $insert), 0, 'another name: no duplicate');

# ---- a session cannot find out which indexes are lost ----------------------------------------------
{
	my $was = slurp_file($node->data_dir . '/postgresql.conf');
	my $from = -s $node->logfile;
	$node->append_conf('postgresql.conf', <<CONF);
index_mover.test_mutation = 'fail-lost'
log_line_prefix = '%b [%p] %q%a '
autovacuum = on
autovacuum_naptime = 1s
CONF
	$node->restart;
	$node->wait_for_log(qr/autovacuum worker \[[0-9]+\] ERROR: .*could not list lost indexes/, $from);
	pass('an error as autovacuum connects: it ends, as it would use the files without another try');
	is($node->psql('postgres', 'SHOW port'), 0, 'an error as a session connects: it is connected');
	ok($node->log_contains(qr/[0-9]\] 089_lost_guard.pl LOG: .*could not empty the files of lost indexes: could not list/, $from),
		'an error as a session connects is in the log');
	isnt($node->psql('postgres', $look_up), 0, 'an error as a session connects: what reads or writes files fails');
	open(my $fh, '>', $node->data_dir . '/postgresql.conf') or die $!;
	print $fh $was;
	close($fh) or die $!;
	$node->restart;
}

# ---- a device that cannot be read ----------------------------------------------------------------
my ($files) = glob("$location/PG_*/*");
foreach my $closed ($location, $files)
{
	chmod 0000, $closed or die $!;
	is($node->psql('postgres', 'SELECT 1'), 0, "$closed cannot be read: other queries work");
	is(value($look_up), 1, "$closed cannot be read: those of its table, too");
	is($node->psql('postgres', 'SELECT * FROM index_mover_check()'), 0, "$closed cannot be read: so does index_mover_check()");
	chmod 0700, $closed or die $!;
}
chmod 0000, $files or die $!;
my $from = -s $node->logfile;
$node->restart;
$node->wait_for_log(qr/LOG: .*could not empty the files of lost indexes: could not stat file/, $from);
is(value('SELECT 1'), 1, 'the server log tells of it, and queries work');
is(value("BEGIN; SELECT 1 FROM pg_sleep(1.2); COMMIT"), 1, 'the end of a block that lasts: it does not look again');
chmod 0700, $files or die $!;
heal('in the end');

# ---- the synchronous standby is away ---------------------------------------------------------------
lose("synchronous_standby_names = 'absent'\n");
my ($out, $is_late);
$node->psql('postgres', $look_up, stdout => \$out, timeout => $PostgreSQL::Test::Utils::timeout_default, timed_out => \$is_late);
is($out, 1, 'the synchronous standby is away: no login waits for it');
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''\n");
$node->reload;
heal('without synchronous standbys');

sub file { return $node->data_dir . '/' . value("SELECT pg_relation_filepath('t_key')"); }
my $file = file();

# ---- the index is locked when the janitor comes ----------------------------------------------------
# (a session whose plans are cached does not try again)
{
	value("BEGIN; SELECT FROM t WHERE id = 1; PREPARE TRANSACTION 'reader'");
	lose("index_mover.test_mutation = 'lost-tries:2000'\n");
	my $session = IndexMover::Session->new($node);
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'", 1,
		'the janitor queues for the lock');
	ok(-s $file, 'a lost index that a transaction has locked is not empty yet');
	$session->run("COMMIT PREPARED 'reader'");
	wait_until('emptied', sub { -z $file });
	is($session->run($look_up), 1, 'the janitor has emptied it: the right answer');
	$session->end;
	$node->append_conf('postgresql.conf', "index_mover.test_mutation = ''\n");
	$node->reload;
	heal('the index was locked');
	$file = file();
}

# ---- full_page_writes is off ---------------------------------------------------------------------
lose("full_page_writes = off\n");
wait_until('emptied', sub { -z $file });
isnt($node->psql('postgres', $insert), 0, 'full_page_writes is off: the file is empty, no duplicate');
$node->stop('immediate');
is($node->start(fail_ok => 1), 1, 'full_page_writes is off: a crash after that');
heal('full_page_writes is off');

# A query keeps the janitor from emptying the file; sessions write to it without images.
$file = file();
value("BEGIN; SET LOCAL enable_seqscan = off; SELECT count(*) FROM t WHERE id = 7; PREPARE TRANSACTION 'reader'");
lose();
wait_for_no_worker($node);
ok(-s $file, 'full_page_writes is off, and a query reads the index: the file is not emptied');
# (the pages of the index are changed all the same)
like(($node->psql('postgres', 'INSERT INTO t SELECT max(id) + g FROM t, generate_series(1, 500) g GROUP BY g'))[2],
	qr/cannot commit changes of table "t" without index "t_key"/, 'full_page_writes is off, and a query reads the index: no duplicate');
value($_) foreach 'ALTER SYSTEM SET full_page_writes = on', 'SELECT pg_reload_conf()', "ROLLBACK PREPARED 'reader'";
$node->poll_query_until('postgres', "SELECT current_setting('full_page_writes')::bool") or die;
is(value($look_up), 1, 'full_page_writes is on again: the right answer');
$node->stop('immediate');
# (crash recovery alone does not mind missing pages)
$node->set_standby_mode;
is($node->start(fail_ok => 1), 1, 'full_page_writes is on again: a crash before the next checkpoint, and a start as a standby');
$node->promote;
heal('full_page_writes is on again');

# ---- a loss that is found while sessions are connected ---------------------------------------------
# An older copy of the device comes in its place, with its marker.
sub lose_now
{
	value('CHECKPOINT');
	my $comes = copy_location($location);
	$node->restart;
	watched();
	value('INSERT INTO t SELECT max(id) + 1 FROM t');
	return sub {
		$comes->();
		value('SELECT count(*) FROM index_mover_check()');
		is(verdict(), 'lost', 'found while sessions are connected');
	};
}
my %writes = (
	'COPY FROM' => sub { return "COPY t FROM PROGRAM 'echo $_[0]'" },
	'a cached plan' => sub { return "EXECUTE put($_[0])" });
foreach my $what (sort keys %writes)
{
	my $now = lose_now();
	$newest = value('SELECT max(id) + 1 FROM t');
	my $session = IndexMover::Session->new($node);
	$session->run('PREPARE put AS INSERT INTO t VALUES ($1)');
	$session->run("SET plan_cache_mode = force_generic_plan; BEGIN; EXECUTE put($newest); ROLLBACK");
	$now->();
	$session->send($writes{$what}->($newest));
	$session->answer;
	like($session->errors, qr/could not read block/, "$what is the first statement after it: an error");
	$session->end;
	heal($what);
}

# In a transaction that lasts: standbys have no lock until its end.
{
	my $backup = $node->backup_dir . '/locks';
	$node->run_log([ 'pg_basebackup', '-D', $backup, '-h', $node->host, '-p', $node->port, '-c', 'fast', '-X', 'stream', '--no-sync',
			"--tablespace-mapping=$location=$dir/locks" ]) or die 'pg_basebackup';
	unlink "$backup/pg_tblspc/$oid" or die $!;
	my $standby = PostgreSQL::Test::Cluster->new('locks');
	$standby->init_from_backup($node, 'locks', has_streaming => 1);
	symlink("$dir/locks", $standby->data_dir . "/pg_tblspc/$oid") or die $!;
	$standby->append_conf('postgresql.conf', 'ignore_invalid_pages = on');
	$standby->start;
	my $now = lose_now();
	my $session = IndexMover::Session->new($node);
	$session->run('BEGIN; SELECT 1');
	$file = file();
	$now->();
	$session->run('SELECT count(*) FROM pg_am');
	ok(-z $file, 'a transaction that lasts: it has emptied the file');
	value('SELECT pg_switch_wal()');
	$node->wait_for_catchup($standby);
	is($standby->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND database =
		(SELECT oid FROM pg_database WHERE datname = current_database())"), 0, 'a transaction that lasts: a standby has no lock of it');
	$session->run('COMMIT');
	$session->end;
	$standby->stop;
	heal('a transaction that lasts');
}

# ---- the first page of a hash index, which is replaced -----------------------------------------------
value($_) foreach 'CREATE TABLE h (k int)', 'INSERT INTO h SELECT generate_series(1, 5000)',
  'CREATE INDEX h_k ON h USING hash (k) TABLESPACE fast';
my $hash = $node->data_dir . '/' . value("SELECT pg_relation_filepath('h_k')");
sub no_hash_ok
{
	my ($name) = @_;
	my (undef, undef, $errors) = $node->psql('postgres', 'INSERT INTO h VALUES (77)');
	return like($errors, qr/corrupted page at block 0/, "$name: no session writes to the old pages");
}
{
	local $ENV{LD_PRELOAD} = $faults;
	my $now = lose_now();
	$from = -s $node->logfile;
	break_calls('write', EIO, 1, 1_000_000, $hash =~ s/.*(?=PG_)//r);
	$now->();
	$node->wait_for_log(qr/could not empty the files of lost indexes: could not write blocks? 0/, $from);
	is($node->psql('postgres', 'CHECKPOINT'), 0, 'the first page cannot be written: a checkpoint does not write it');
	ok(!is_void($hash), 'the first page cannot be written: the file has the old page');
	cmp_ok(mend_calls(), '>', 0, 'the first page cannot be written: writes of it have failed');
	wait_until('replaced', sub { value('SELECT 1'); is_void($hash) });
	no_hash_ok('it can be written again');
	value('DROP INDEX h_k');
	heal('a page that could not be written');
	value('CREATE INDEX h_k ON h USING hash (k) TABLESPACE fast');
	$hash = $node->data_dir . '/' . value("SELECT pg_relation_filepath('h_k')");
}
{
	my $now = lose_now();
	value('INSERT INTO h VALUES (9000)');
	$now->();
	wait_until('replaced', sub { value('SELECT 1'); is_void($hash) });
	no_hash_ok('before a crash');
	$node->stop('immediate');
	# (at its end, crash recovery alone would write the old page, of which the WAL has an image, to the file)
	$node->set_standby_mode;
	$node->start;
	$node->promote;
	ok(is_void($hash), 'recovery has the old page in memory, not in the file');
	no_hash_ok('after recovery');
	value('DROP TABLE h');
	heal('after recovery');
}

# ---- a base backup of a server with lost files ---------------------------------------------------
lose();
my $backup = $node->backup_dir . '/restored';
$node->run_log([ 'pg_basebackup', '-D', $backup, '-h', $node->host, '-p', $node->port, '-c', 'fast', '-X', 'stream', '--no-sync',
		"--tablespace-mapping=$location=$dir/restored" ]) or die 'pg_basebackup';
# core's module does not like the link
unlink "$backup/pg_tblspc/$oid" or die $!;
my $restored = PostgreSQL::Test::Cluster->new('restored');
$restored->init_from_backup($node, 'restored');
symlink("$dir/restored", $restored->data_dir . "/pg_tblspc/$oid") or die $!;
$restored->start;
is($restored->safe_psql('postgres', $look_up), 1, 'a base backup has lost what its origin has: the right answer');
is($restored->safe_psql('postgres', "SELECT kind, object FROM index_mover_check() WHERE kind = 'lost device'"), 'lost device|fast',
	'and index_mover_check() says so');
$restored->stop;
heal('its origin');
done_testing();
