# A copy that goes on after its end: killed, stopped, canceled, or taken over by a
# standby, at each point that leaves another file; with changes of each kind in
# between.  What is taken over is right, byte by byte, here and on the standbys; what
# is not certain begins again, and says why.  And the comparison would notice if
# one of the rules were left out.
#
# Fault (processes): the end of a large copy, at each point of its record and behind it, by a
#   kill, a cancel, a stop, and again while it goes on; it goes on, or begins again (17)
# Fault (storage): the target's device comes back empty in a crash in mid-copy: the copy begins again (17)
# Fault (storage): the disk is full when a copy records how far it is: it goes on (17)
# Fault (replication): one or two promotions in the middle of a large copy, which goes on there;
#   the old primary rewound (17)
use strict;
use warnings;

use Errno qw(ENOSPC);
use File::Path qw(make_path rmtree);
use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Call;
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Storage;
use IndexMover::Tables;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
plan skip_all => 'WAL summaries came with PostgreSQL 17'
  unless `pg_config --version` =~ /PostgreSQL (\d+)/ && $1 >= 17;

my $only = $ENV{ONLY} || '.';

my ($node, $standby, @others);
{
	my $conf = <<CONF;
shared_preload_libraries = 'index_mover'
checkpoint_timeout = 1h
max_wal_size = 1GB
wal_keep_size = 512MB
wal_retrieve_retry_interval = 100ms
index_mover.resumable_size = 1MB
index_mover.pacing = off
index_mover.max_workers = 1
CONF
	$node = new_node('resume', streaming => 1, extra => ['--data-checksums'], conf => "$conf\nsummarize_wal = on");
}
sub sql { return $node->safe_psql('postgres', @_) }

make_table($node, 'big', 3200);
sub new_standby
{
	my ($name) = @_;
	$node->backup($name);
	my $new = PostgreSQL::Test::Cluster->new($name);
	$new->init_from_backup($node, $name, has_streaming => 1);
	$new->start;
	return $new;
}
$standby = new_standby('standby');

my $changes = 0;
sub change { change_table($node, 'big', ++$changes); return; }

# Have the move of the table end at a point.  Returns the job's number.
sub interrupt
{
	my ($end, $point, %options) = @_;
	my $to = other_place((split / /, places_of_table($node, 'big'))[0]);
	my $move = $options{move} // "SELECT max(job) FROM move_table('big', '$to', wait => false)";
	my $log = -s $node->logfile;
	if ($end eq 'kill')
	{
		set_tests($node, test_point => "$point:kill", test_mutation => $options{mutation});
		my $job = sql($move);
		$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
		wait_until_up($node);
		set_tests($node);
		return $job;
	}
	set_tests($node, test_point => "$point:wait" . ($options{then} ? ",$options{then}" : ''), test_mutation => $options{mutation});
	sql("BEGIN; SELECT pg_advisory_xact_lock(0, 5959); PREPARE TRANSACTION 'holder'");
	my $job = sql($move);
	(my $name = $point) =~ s/:.*//;
	$node->wait_for_log(qr/test point "$name[^"]*": waiting/, $log);
	$options{meanwhile}->() if $options{meanwhile};
	if ($options{then})
	{
		sql("ROLLBACK PREPARED 'holder'");
		$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
		wait_until_up($node);
		set_tests($node);
		return $job;
	}
	if ($end eq 'cancel') { is(sql("SELECT cancel_move($job, keep => true)"), '1', 'canceled'); wait_for_no_worker($node); }
	elsif ($end eq 'promote') { promote() }
	elsif ($end eq 'sibling')
	{
		sql("SELECT pg_terminate_backend(pid) FROM index_mover_progress WHERE name = 'bystander'");
		wait_for_no_worker($node);
	}
	else { $node->stop($end); $node->start; }
	sql("ROLLBACK PREPARED 'holder'");
	set_tests($node);
	return $job;
}

# The standby takes over; the next one becomes its standby.
sub promote
{
	$node->wait_for_catchup($_, 'replay', $node->lsn('insert')) foreach $standby, @others;
	$node->stop('immediate');
	$standby->promote;
	poll_until($standby, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');
	($node, $standby) = ($standby, shift @others);
	foreach my $other (grep { $_ } $standby, @others)
	{
		$other->enable_streaming($node);
		$other->restart;
	}
	return;
}

# What is on record of the largest file.
sub kept { return sql("SELECT coalesce(max(copied_blocks), 0) FROM index_mover.ledger WHERE kind = 'n'") }

# Go on; returns "status, blocks copied in the first pass of the table (or index), message".
sub resume
{
	my ($job, %options) = @_;
	my $kind = $options{kind} // 'table';
	set_tests($node, test_mutation => $options{mutation}) if $options{mutation};
	my $rest = sql("SELECT resume_move($job)");
	wait_for_job_end($node, $rest);
	set_tests($node) if $options{mutation};
	return sql("SELECT status, blocks_copied, message FROM index_mover_history WHERE job = $rest AND kind = '$kind'");
}

sub blocks { return sql("SELECT pg_relation_size('big') / current_setting('block_size')::int") }

sub goes_on_ok
{
	my ($job, $name, %options) = @_;
	my $kept = kept();
	cmp_ok($kept, '>', 0, "$name: $kept of " . blocks() . ' blocks are on record');
	my $to = other_place((split / /, places_of_table($node, 'big'))[0]);
	my ($status, $copied, $message) = split /\|/, resume($job);
	if ($options{again}) { like($message, qr/did not go on where job $job had ended, because $options{again}/, "$name: begins again") }
	else
	{
		like($message, qr/went on where job $job had ended, with .* of which/, "$name: goes on");
		note $message;
		is($copied, blocks() - $kept, "$name: the others are copied") unless $options{cut};
	}
	is($status, 'moved', "$name: moved");
	is(places_of_table($node, 'big'), all_at($to), "$name: is there");
	wait_for_no_worker($node);
	table_ok($node, 'big', $name);
	same_table_ok($node, $standby, 'big', $name);
	is(sql('SELECT count(*) FROM index_mover.ledger'), '0', "$name: the ledger is empty");
	files_ok($node, $name);
	$node->wait_for_catchup($standby);
	files_ok($standby, "$name, standby");
	count_fault('copies that went on');
	return;
}

# ---- each end, and changes after it -------------------------------------------------------
foreach my $end (grep { "ends $_" =~ /$only/ } picked { /kill|cancel/ } 'ends', 'kill', 'cancel', 'immediate', 'fast')
{
	# recovery makes other command ids
	sql('CHECKPOINT');
	change();
	my $told;
	my $job = interrupt($end, 'copy-half', meanwhile => sub {
		$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
		$told = $standby->safe_psql('postgres',
			"SELECT message FROM index_mover_history WHERE kind = 'table' AND status = 'running' AND message <> ''");
	});
	if ($end eq 'cancel')
	{
		like($told, qr/^Its copy goes on from \d+ kB of it, kept until /, 'a standby names it, without a blank before it');
		like(sql("SELECT action FROM index_mover_cleanup(dry_run => true) WHERE kind = 'unfinished copy' AND action <> 'remove'"),
			qr/^remove; otherwise kept until .*, for: SELECT index_mover_call\.resume_move\($job\)/, 'a cleanup would remove it');
		like(sql("SELECT severity, detail, command FROM index_mover_check() WHERE kind = 'unfinished copy'"),
			qr/^warning\|an interrupted move has left it: \d+ [kM]B, kept until [^|]*\|SELECT index_mover_call\.resume_move\($job\);$/,
			'index_mover_check() does not ask for that');
		like(sql("SELECT message FROM index_mover_history WHERE job = $job AND kind = 'table'"),
			qr/Its copy goes on from \d+ kB of it, kept until /, 'the history names it');
		like(sql("SELECT detail FROM evacuate_tablespace('regress_fast', 'regress_slow', dry_run => true) WHERE kind = 'unfinished copy'"
				. " UNION ALL SELECT detail FROM evacuate_tablespace('regress_slow', 'regress_fast', dry_run => true)"
				. " WHERE kind = 'unfinished copy'"),
			qr/^Job $job has left it, and can go on from it until [^|]*\. To remove it: SELECT \* FROM index_mover_call\./,
			'it stays in the tablespace');
		$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
		is($standby->safe_psql('postgres', "SELECT count(*) > 0 FROM evacuate_tablespace('regress_fast', 'regress_slow', dry_run => true)"),
			't', 'which a standby can plan to empty');
		# what moves or cleans up something else leaves it
		sql("CREATE TABLE other (i int) TABLESPACE regress_slow; SELECT FROM move_table('other', 'regress_fast'); DROP TABLE other");
	}
	change();
	goes_on_ok($job, $end);
}

# ---- another worker of the job is terminated, which ends all of them ----------------------
if ('sibling' =~ /$only/)
{
	sql('CREATE TABLE bystander AS SELECT generate_series(1, 200000) AS i');
	my $to = other_place((split / /, places_of_table($node, 'big'))[0]);
	my $job = interrupt('sibling', 'copy-half',
		move => "SELECT max(job) FROM move_schema_tables('public', '$to', wait => false, name_like => 'b%', settings => "
			. q['{"max_workers": 2}')],
		meanwhile => sub {
			poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover' AND wait_event = 'Extension'", '2',
				'two copies are half done');
		});
	is(sql("SELECT status FROM index_mover_history WHERE job = $job AND name = 'big'"), 'canceled', 'sibling: the other one is canceled');
	sql('DROP TABLE bystander');
	change();
	goes_on_ok($job, 'another worker was terminated');
}

# ---- each point ---------------------------------------------------------------------------
foreach my $point (grep { "points $_" =~ /$only/ } picked { /resume-record:2|copy-synced/ } 'points',
	'resume-recording:2', 'resume-record:2', 'resume-recorded:2', 'copy-logged:5', 'copy-end', 'copy-round',
	'copy-before-sync', 'copy-synced', 'copy-synced:2', 'copy-verifying', 'swap-asking', 'swap-before-commit')
{
	my $job;
	if ($point eq 'copy-round')
	{
		$job = interrupt('cancel', 'copy-end', then => "$point:kill", meanwhile => \&change);
	}
	else { $job = interrupt('kill', $point) }
	change();
	sql('CHECKPOINT') if $changes % 2;
	change();
	goes_on_ok($job, "at $point");
	my ($each, $other) = map { qr/The copy$_ went on where job $job had ended, with .*\. ?/ } ' of TOAST table "\w+"', '';
	like(sql("SELECT string_agg(DISTINCT message, E'\n') FROM index_mover_history WHERE message ~ 'went on where job $job had'"),
		qr/^$other$each$/, 'each row tells of all files') if $point eq 'copy-synced:2';
}

# ---- a table that is as new as the last checkpoint ----------------------------------------------
if ('new' =~ /$only/)
{
	sql('CHECKPOINT');
	sql('CREATE TABLE fresh TABLESPACE regress_slow AS SELECT g, repeat(md5(g::text), 20) AS s FROM generate_series(1, 8000) g');
	my $move = "SELECT max(job) FROM move_table('fresh', 'regress_fast', wait => false)";
	my $job = interrupt('kill', 'copy-end', move => $move);
	my ($again) = resume($job) =~ /went on where .* of which (\d+ \w+) had to be copied again/;
	# block 0
	is($again, block_size($node) . ' bytes', 'a new table: nothing of it was copied again');

	# said at once: what nothing is on record of, and what to set if that would help
	sub said
	{
		my ($name) = @_;
		my ($rc, $out, $err) = $node->psql('postgres', "SELECT resume_move($job)");
		wait_for_job_end($node, $out);
		note "$name: $err";
		return $err;
	}
	my $again_from = qr/NOTICE:  the copy of table "fresh" begins again\nDETAIL:  Nothing is on record of how far job \d+ was\.\n/;
	$job = interrupt('kill', 'copy-first', move => $move =~ s/fast/slow/r);
	like(said('before the first record'), qr/$again_from(?!HINT)/, 'killed before the first record: no advice to set what is set');
	$job = interrupt('kill', 'copy-end', move => $move);
	sql('ALTER TABLE fresh ALTER g TYPE bigint');
	unlike(said('another file'), qr/begins again/, 'nothing is said of a record where there is one, of another file');
	like(sql("SELECT message FROM index_mover_history WHERE kind = 'table' ORDER BY job DESC LIMIT 1"),
		qr/it has another file since/, 'the row says that the relation has another file');
	$job = interrupt('kill', 'copy-first', move => "SELECT max(job) FROM move_table('fresh', 'regress_slow', wait => false), "
		. "pg_sleep(0) WHERE kind = 'table'");
	sql("UPDATE index_mover.move_log SET started_at = NULL, finished_at = NULL, status = 'canceled', sqlstate = '57P01' WHERE job = $job");
	unlike(said('not begun'), qr/begins again/, 'nor of a copy that had not begun');
	sql('DROP TABLE fresh');
	wait_for_no_worker($node);

	# the free space need not suffice for the file of the TOAST table that is there already
	sql('CHECKPOINT; CREATE TABLE wide (i int, s text) TABLESPACE regress_slow; ALTER TABLE wide ALTER s SET STORAGE external; '
		. 'INSERT INTO wide SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 4000) g');
	$job = interrupt('kill', 'copy-end', move => "SELECT max(job) FROM move_table('wide', 'regress_fast', wait => false)");
	my $free = 6_000_000;
	sql($_) foreach "LOAD 'index_mover'; ALTER SYSTEM SET index_mover.test_file_systems = 'regress_fast:1:$free:$free'",
		'ALTER SYSTEM SET index_mover.min_free_space = 0', 'SELECT pg_reload_conf()';
	like(resume($job, kind => 'toast'), qr/^moved\|.*went on where job $job had ended/, 'free space for the rest is enough');
	sql("LOAD 'index_mover'; ALTER SYSTEM RESET $_") foreach qw(index_mover.test_file_systems index_mover.min_free_space);
	sql('SELECT pg_reload_conf(); DROP TABLE wide');
}

# ---- other changes ------------------------------------------------------------------------
sub recycle
{
	$node->wait_for_catchup($standby);
	sql("SELECT pg_switch_wal(); SELECT txid_current()"), sql('CHECKPOINT') foreach 1 .. 3;
}
# VACUUM cuts off what comes from this block on.
sub cut
{
	my ($block) = @_;
	sql("DELETE FROM $_ WHERE id IN (SELECT id FROM big WHERE ctid >= '($block,0)')") foreach 'big_twin', 'big';
	sql('VACUUM (TRUNCATE) big');
	is(sql("SELECT pg_relation_size('big') / current_setting('block_size')::int"), $block, 'VACUUM has truncated the table');
	return;
}
sub fill_up
{
	sql(<<SQL) foreach 'big', 'big_twin';
INSERT INTO $_ SELECT g, g, repeat(md5(g::text), 50), CASE WHEN g % 5 = 0 THEN repeat(md5(g::text), 120) END
  FROM generate_series(1, 3200) g ON CONFLICT DO NOTHING
SQL
	return;
}
# COPY extends by many blocks at once; the last of them stay zeros, of which no WAL tells.
my $last_id = 3000000;
sub cut_and_extend
{
	cut(200);
	my $file = PostgreSQL::Test::Utils::tempdir() . '/rows';
	my $first = $last_id + 1;
	$last_id += 1000;
	sql(<<SQL);
CHECKPOINT;
COPY (SELECT g, g, repeat(md5(g::text), 50), NULL FROM generate_series($first, $last_id) g) TO '$file';
COPY big FROM '$file'; COPY big_twin FROM '$file';
CHECKPOINT;
SQL
	cmp_ok(sql(<<SQL), '>', 0, 'there are blocks of zeros');
SELECT count(*) FROM generate_series(200, @{[ blocks() - 1 ]}) b WHERE replace(encode(get_raw_page('big', b), 'hex'), '0', '') = ''
SQL
	return;
}
my %changes = (
	nothing => sub { },
	'WAL recycled' => sub { change(); recycle(); change(); recycle(); },
	'hint bits' => sub {
		sql("UPDATE $_ SET v = v + 1 WHERE id % 7 = 3; CHECKPOINT; SELECT count(*) FROM $_; CHECKPOINT") foreach 'big', 'big_twin'; },
	extended => sub {
		sql("INSERT INTO $_ SELECT 2000000 + g, g, repeat(md5(g::text), 50) FROM generate_series(1, 400) g") foreach 'big', 'big_twin';
		sql('CHECKPOINT'); },
	truncated => sub { cut(300); sql('CHECKPOINT') },
	# the last blocks that were copied are gone, and most are there again
	'truncated and extended' => \&cut_and_extend,
	# (still larger than its TOAST table, whose copy begins with a checkpoint)
	'truncated in the WAL behind the summaries' => sub { cut(700) },
	'another file' => sub { sql('VACUUM FULL big') },
	'no summaries' => sub { sql('ALTER SYSTEM SET summarize_wal = off; SELECT pg_reload_conf()'); change(); },
	'a gap in the summaries' => sub {
		sql('CHECKPOINT');
		sql('ALTER SYSTEM SET summarize_wal = off; SELECT pg_reload_conf()');
		poll_until($node, "SELECT summarizer_pid IS NULL FROM pg_get_wal_summarizer_state()", 't', 'end of summaries');
		sql('ALTER SYSTEM SET wal_keep_size = 0; SELECT pg_reload_conf()');
		change(); recycle(); change(); recycle();
		sql('ALTER SYSTEM RESET wal_keep_size; ALTER SYSTEM RESET summarize_wal; SELECT pg_reload_conf()'); },
	'summaries removed' => sub { change(); sql('CHECKPOINT'); change(); sql('CHECKPOINT');
		poll_until($node, 'SELECT summarized_lsn >= redo_lsn FROM pg_get_wal_summarizer_state(), pg_control_checkpoint()');
		unlink glob $node->data_dir . '/pg_wal/summaries/*.summary'; },
	'the file is gone' => sub {
		$node->stop;
		my ($file) = glob($node->data_dir . '/' . $_[0]);
		truncate $file, 0 or die;
		$node->start; });
my %again = (
	'truncated in the WAL behind the summaries' => 'its file was truncated, or changed',
	'another file' => 'it has another file since',
	'no summaries' => 'summarize_wal is off',
	'a gap in the summaries' => 'there is no WAL summary from [0-9A-F/]+ on on timeline 1',
	'summaries removed' => 'there is no WAL summary from [0-9A-F/]+ on on timeline 1',
	'the file is gone' => 'the file that was kept has 0 blocks instead of \d+');
foreach my $what (grep { "changes $_" =~ /$only/ } picked { /WAL recycled|truncated|removed/ } 'changes', sort keys %changes)
{
	my $job = interrupt('kill', 'copy-end');
	$changes{$what}->(sql(<<SQL));
SELECT format('pg_tblspc/%s/PG_*/%s/%s', tablespace, database, relfilenumber) FROM index_mover.ledger WHERE copied_blocks > 500
SQL
	goes_on_ok($job, $what, again => $again{$what}, cut => $what =~ /truncated/ ? 1 : 0);
	sql('ALTER SYSTEM RESET summarize_wal; SELECT pg_reload_conf()') if $what eq 'no summaries';
	fill_up() if $what =~ /truncated|extended/;
}

# ---- what was kept is no more -------------------------------------------------------------
# The file from which the job could go on.
sub kept_path
{
	return $node->data_dir . '/' . sql("SELECT format('pg_tblspc/%s/%s/%s/%s', tablespace, (SELECT pg_ls_dir FROM pg_ls_dir('pg_tblspc/' ||
		tablespace) WHERE pg_ls_dir ~ '^PG_'), database, relfilenumber) FROM index_mover.ledger ORDER BY copied_blocks DESC LIMIT 1");
}
sub overwrite
{
	my ($path, $block, $bytes) = @_;
	open(my $fh, '+<:raw', $path) or die "$path: $!";
	seek($fh, $block * 8192, 0);
	print $fh $bytes;
	close($fh) or die $!;
	return;
}
# A device that came back empty in a crash has zeros, or other things, in place of what was before the redo position.
foreach my $what (grep { "ruins $_" =~ /$only/ } picked { /zeros|another/ } 'ruins', 'zeros', 'no page', 'another page', 'device not known')
{
	sql('ALTER SYSTEM SET index_mover.verify = off; SELECT pg_reload_conf()');
	my $job = interrupt('kill', 'copy-end');
	my $path = kept_path();
	sql('CHECKPOINT');
	$node->stop('fast');
	my $page = 'x' x 8192;
	if ($what eq 'another page')
	{
		open(my $fh, '<:raw', $path) or die $!;
		read($fh, $page, 8192);
	}
	overwrite($path, 100, "\0" x (8192 * 50)) if $what eq 'zeros';
	overwrite($path, 100, $page) if $what =~ /page/;
	$node->start;
	set_tests($node, test_mutation => 'evidence:1') if $what =~ /known/;
	change();
	my $result = resume($job);
	if ($what =~ /known/)
	{
		like($result, qr/^moved\|.*did not go on .*, because it is not known whether the tablespace has kept that file/,
			"$what: begins again");
	}
	else
	{
		like($result, qr/^moved\|.*went on where job $job had ended(?!.*began again)/, "$what: goes on");
	}
	set_tests($node);
	wait_for_no_worker($node);
	table_ok($node, 'big', $what);
	# or the next copy's summary would have the creation of this one's file
	sql($_) foreach 'ALTER SYSTEM RESET index_mover.verify', 'SELECT pg_reload_conf()', 'CHECKPOINT';
}

# The device itself came back empty in the crash: recovery makes the file again, with its length.
if ('emptied' =~ /$only/)
{
	# (whose tablespace would be in the same place)
	$standby->stop;
	my $location = PostgreSQL::Test::Utils::tempdir() . '/device';
	make_path($location);
	sql("SET allow_in_place_tablespaces = off; CREATE TABLESPACE device LOCATION '$location'");
	sql('CREATE TABLE fresh TABLESPACE regress_slow AS SELECT g, repeat(md5(g::text), 20) AS s FROM generate_series(1, 8000) g');
	sql('CHECKPOINT');
	# the janitor has marked the device
	poll_until($node, "SELECT count(*) FROM index_mover_check() WHERE object = 'device'", '0', 'the marker');
	my $sum = sql('SELECT sum(hashtextextended(f::text, 0)) FROM fresh f');
	set_tests($node, test_point => 'copy-end:wait');
	my $log = -s $node->logfile;
	sql("BEGIN; SELECT pg_advisory_xact_lock(0, 5959); PREPARE TRANSACTION 'holder'");
	my $job = sql("SELECT max(job) FROM move_table('fresh', 'device', wait => false)");
	$node->wait_for_log(qr/test point "copy-end": waiting/, $log);
	sql("CHECKPOINT; INSERT INTO fresh SELECT -1, 'x'; DELETE FROM fresh WHERE g = -1");
	$node->stop('immediate');
	rmtree($location);
	make_path($location);
	$node->start;
	sql("ROLLBACK PREPARED 'holder'");
	set_tests($node);
	cmp_ok(kept(), '>', 0, 'emptied: a row names ' . kept() . ' blocks');
	like(resume($job), qr/^moved\|.*did not go on .*, because it is not known whether the tablespace has kept that file/,
		'emptied: begins again');
	is(sql('SELECT sum(hashtextextended(f::text, 0)) FROM fresh f'), $sum, 'emptied: no row is lost');
	sql($_) foreach 'DROP TABLE fresh', 'CHECKPOINT';
	wait_for_no_worker($node);
	sql('DROP TABLESPACE device');
	$standby->start;
}

# ---- an end while it goes on --------------------------------------------------------------
foreach my $point (grep { "second ends $_" =~ /$only/ } picked { /resume-begins/ } 'second ends',
	'resume-summaries', 'resume-recorded', 'resume-begins', 'copy-logged:2', 'copy-end', 'copy-synced')
{
	my $job = interrupt('kill', 'copy-half');
	change();
	my $log = -s $node->logfile;
	set_test_point($node, "$point:kill");
	my $rest = sql("SELECT resume_move($job)");
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
	wait_until_up($node);
	set_tests($node);
	change();
	$job = $rest if kept() && sql("SELECT max(job) FROM index_mover.ledger") == $rest;
	goes_on_ok($job, "a second end, at $point");
}

# ---- the comparison would notice ----------------------------------------------------------
foreach my $mutation (grep { "mutations $_" =~ /$only/ } picked { 1 } 'mutations', 'resume-summaries', 'resume-limit', 'resume-late',
	'resume-buffers')
{
	my $job;
	# a copy that goes on is compared in any case
	sql('ALTER SYSTEM SET index_mover.verify = off; SELECT pg_reload_conf()');
	sql('CHECKPOINT');
	if ($mutation eq 'resume-late')
	{
		$job = interrupt('cancel', 'resume-recording:3', mutation => $mutation,
			meanwhile => sub { change(); sql('CHECKPOINT') }, then => 'copy-end:kill');
	}
	else
	{
		$job = interrupt('kill', 'copy-end');
		$mutation eq 'resume-limit' ? cut_and_extend() : change();
		sql('CHECKPOINT');
	}
	cmp_ok(kept(), '>', 0, "mutation $mutation: there is a record");
	like(resume($job, mutation => $mutation eq 'resume-late' ? '' : $mutation),
		qr/^moved\|.*went on .* It began again, because that file differed from the original in block \d+\./s,
		"mutation $mutation is noticed, and mended");
	wait_for_no_worker($node);
	table_ok($node, 'big', "mutation $mutation");
	sql('ALTER SYSTEM RESET index_mover.verify; SELECT pg_reload_conf()');
	fill_up() if $mutation eq 'resume-limit';
}

# ---- records that fail, nothing on record, a record that names another's file -------------------
if ('failures' =~ /$only/)
{
	# The copy that began again above has asked for a checkpoint, spread as any, and made a file.  The next copy does not
	# wait for that one to end, and then the first summary of its changes has the creation of the file.
	sql('CHECKPOINT');
	my $log = -s $node->logfile;
	my $job = interrupt('kill', 'resume-record:2:error,resume-recorded:3');
	my $warning = 'could not record how far the copy of table "big" is\n.*DETAIL:  ';
	ok($node->log_contains(qr/WARNING:  XX000: ${warning}test point "resume-record"\n/, $log), 'a record fails');
	change();
	goes_on_ok($job, 'after a failed record');
	$job = interrupt('kill', 'resume-record:2:error,resume-recorded:2');
	change();
	goes_on_ok($job, 'after a failed record, by the one before');

	# lock_timeout runs out as the lock of the row is granted, which core raises later
	$log = -s $node->logfile;
	$job = interrupt('kill', 'resume-record:2:timeout,resume-recorded:3');
	ok($node->log_contains(qr/WARNING:  55P03: ${warning}canceling statement due to lock timeout/, $log), 'a lock timeout and the grant');
	change();
	goes_on_ok($job, 'after a lock timeout');

	# a session that has locked the ledger: the copy does not wait for it
	my $locker = IndexMover::Session->new($node);
	$log = -s $node->logfile;
	$job = interrupt('cancel', 'resume-recording:3', then => 'resume-recorded:5:kill',
		meanwhile => sub { $locker->run('BEGIN; LOCK TABLE index_mover.ledger IN SHARE MODE') });
	ok($node->log_contains(qr/WARNING:  55P03: ${warning}canceling statement due to lock timeout/, $log), 'a locked ledger');
	$locker->end;
	change();
	goes_on_ok($job, 'after a locked ledger');

	# nor does a session that locks the table wait for it, as a copy goes on
	$job = interrupt('cancel', 'copy-half');
	$log = -s $node->logfile;
	set_tests($node, test_point => 'resume-summaries:wait');
	sql("BEGIN; SELECT pg_advisory_xact_lock(0, 5959); PREPARE TRANSACTION 'holder'");
	my $rest = sql("SELECT resume_move($job)");
	$node->wait_for_log(qr/test point "resume-summaries": waiting/, $log);
	set_tests($node);
	$locker = IndexMover::Session->new($node);
	$locker->run('BEGIN; LOCK TABLE index_mover.ledger IN SHARE MODE');
	sql("ROLLBACK PREPARED 'holder'");
	poll_until($node, "SELECT count(*) > 0 FROM pg_locks WHERE relation = 'index_mover.ledger'::regclass AND NOT granted", 't',
		'the ledger');
	is(sql("SET lock_timeout = '10s'; BEGIN; LOCK TABLE big; COMMIT; SELECT 1"), '1', 'a locked ledger, as a copy goes on');
	$locker->end;
	wait_for_job_end($node, $rest);
	like(sql("SELECT status, message FROM index_mover_history WHERE job = $rest AND kind = 'table'"),
		qr/^moved\|The copy went on where job $job had ended/, 'then it goes on');
	table_ok($node, 'big', 'after that');

	my $to = other_place((split / /, places_of_table($node, 'big'))[0]);
	interrupt('kill', 'copy-end',
		move => "SET index_mover.resumable_size = -1; SELECT max(job) FROM move_table('big', '$to', wait => false)");
	is(kept(), '0', 'nothing is recorded with resumable_size = -1');
	sql('SELECT count(*) FROM index_mover_cleanup()');

	# The disk of the ledger is full.  Three rows fill a page, so one of the next records
	# makes another.
	my $library = preload_library('io_faults');
	{ local $ENV{LD_PRELOAD} = $library; $node->restart; }
	sql($_) foreach 'ALTER TABLE index_mover.ledger SET (fillfactor = 10)', 'VACUUM FULL index_mover.ledger';
	$log = -s $node->logfile;
	$job = interrupt('cancel', 'resume-recording:2', then => 'resume-recorded:5:kill',
		meanwhile => sub { break_calls('write', ENOSPC, 1, 1, sql("SELECT pg_relation_filepath('index_mover.ledger')")) });
	is(mend_calls(), 1, 'the disk was full once');
	ok($node->log_contains(qr/WARNING:  53100: ${warning}could not extend file .*No space left/, $log), 'a full disk');
	sql('ALTER TABLE index_mover.ledger RESET (fillfactor)');
	change();
	goes_on_ok($job, 'after a full disk');

	sql('ALTER SYSTEM SET summarize_wal = off; SELECT pg_reload_conf()');
	poll_until($node, 'SHOW summarize_wal', 'off');
	$job = interrupt('kill', 'copy-end');
	my ($rc, $out, $err) = $node->psql('postgres', "SELECT resume_move($job)");
	like($err, qr/^[^\n]*NOTICE:  the copy of table "big" begins again
DETAIL:  Nothing is on record of how far job $job was\.
HINT:  [^\n]*summarize_wal[^\n]*
[^\n]*NOTICE:  the rest of job/, 'nothing was recorded: one NOTICE says so');
	wait_for_job_end($node, $out);
	sql('ALTER SYSTEM RESET summarize_wal; SELECT pg_reload_conf()');
	poll_until($node, 'SHOW summarize_wal', 'on');

	# while it waits for the summaries, others pass (which must not tell how the file was made)
	sql('CHECKPOINT');
	$job = interrupt('kill', 'copy-end');
	my $summarizer = sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsummarizer'");
	kill 'STOP', $summarizer;
	change();
	sql('CHECKPOINT');
	my $rest = sql("SELECT resume_move($job)");
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE relation = 'big'::regclass AND mode = 'AccessShareLock' AND granted", '1');
	sql("SET lock_timeout = '20s'; BEGIN; LOCK TABLE big; COMMIT");
	kill 'CONT', $summarizer;
	wait_for_job_end($node, $rest);
	like(sql("SELECT status, message FROM index_mover_history WHERE job = $rest AND kind = 'table'"),
		qr/^moved\|.*went on where job $job had ended/, 'a lock was granted while it waited for WAL summaries');

	$job = interrupt('kill', 'copy-half');
	(my $path, $to) = split /\|/, sql(<<SQL);
SELECT format('pg_tblspc/%s/PG_*/%s/%s*', tablespace, database, relfilenumber), spcname
  FROM index_mover.ledger JOIN pg_tablespace t ON t.oid = tablespace ORDER BY copied_blocks DESC LIMIT 1
SQL
	sql(<<SQL);
CREATE TABLE other TABLESPACE $to AS TABLE big;
UPDATE index_mover.ledger SET relfilenumber = pg_relation_filenode('other')
 WHERE copied_blocks = (SELECT max(copied_blocks) FROM index_mover.ledger);
CREATE TABLE sums AS SELECT (SELECT sum(hashtextextended(o::text, 0)) FROM other o);
SQL
	like(resume($job), qr/^moved\|(?!.*went on where)/, 'a row that names the file of another relation is not believed');
	is(sql('SELECT sum(hashtextextended(o::text, 0)) = (TABLE sums) FROM other o'), 't', 'that file is as it was');
	sql('DROP TABLE other, sums');
	unlink glob $node->data_dir . "/$path";
	wait_for_no_worker($node);
	files_ok($node, 'the row of another file');
	# (the standby has that file, too, and could not write its changed buffers later)
	sql('CHECKPOINT');
	$node->wait_for_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	unlink glob $standby->data_dir . "/$path";
}

# ---- indexes --------------------------------------------------------------------------------
my %column = (btree => 's', hash => 's', spgist => 's', gin => 'a', gist => 'p');
sub change_keyed
{
	$changes++;
	sql(<<SQL);
UPDATE keyed SET s = md5(s), a = ARRAY[i, $changes], p = point(i % 977, $changes) WHERE i % 50 = $changes % 50;
DELETE FROM keyed WHERE i BETWEEN $changes * 100 AND $changes * 100 + 99;
INSERT INTO keyed SELECT g, md5(g || ' $changes'), ARRAY[g, $changes], point(g % 977, $changes) FROM generate_series(1, 200) g;
VACUUM keyed;
SQL
	return;
}
foreach my $case (grep { "indexes $_" =~ /$only/ } picked { $_ eq 'btree kill' } 'indexes', 'btree promote', 'gist promote', 'gin promote',
	map { "$_ kill" } sort keys %column)
{
	my ($am, $end) = split / /, $case;
	@others = new_standby("index_$am") if $end eq 'promote';
	sql(<<SQL);
CREATE TABLE keyed (i int, s text, a int[], p point) WITH (fillfactor = 80);
INSERT INTO keyed SELECT g, md5(g::text), ARRAY[g, g % 1000], point(g % 977, g / 977) FROM generate_series(1, 60000) g;
CREATE INDEX keyed_i ON keyed USING $am ($column{$am}) TABLESPACE regress_slow;
SELECT oracle.remember_metadata('keyed');
CHECKPOINT;
SQL
	change_keyed();
	my $job = interrupt($end, 'copy-end', meanwhile => \&change_keyed,
		move => "SELECT max(job) FROM move_indexes('keyed_i', 'regress_fast', method => 'copy', wait => false)");
	cmp_ok(kept(), '>', 0, "$case: @{[ kept() ]} blocks are on record");
	change_keyed();
	sql('CHECKPOINT');
	change_keyed();
	like(resume($job, kind => 'index'), qr/^moved\|.*went on where job $job had ended/, "$case: goes on");
	arrived_ok($node, 'keyed', 'keyed_i', 'regress_fast', $case, standby => $standby, metadata => 1, look_up => $am eq 'btree');
	sql('DROP TABLE keyed');
}

# ---- a standby takes over, and another one from that ----------------------------------------
foreach my $times (grep { "promotions $_" =~ /$only/ } picked { $_ == 2 } 'promotions', 1, 2)
{
	@others = map { new_standby("standby$times$_") } 1 .. $times;
	change();
	my $job = interrupt('promote', 'copy-end', meanwhile => sub { change(); sql('CHECKPOINT') });
	change();
	if ($times > 1)
	{
		sql('CHECKPOINT');
		change();
		promote();
		change();
	}
	goes_on_ok($job, "promoted, $times");
}
# ---- the old primary comes back -------------------------------------------------------------
# Behind the promotion it has copied changed blocks again; the WAL of that is lost, that
# of the change not.  pg_rewind has to find them.
sub goes_on_after_rewind
{
	my ($mutation) = @_;
	my ($old, $new) = ($node, $standby);
	my $name = $mutation ? "rewound, mutation $mutation" : 'rewound';
	my $to = other_place((split / /, places_of_table($old, 'big'))[0]);
	my $log = -s $old->logfile;
	# enough to keep a round in memory
	$old->append_conf('postgresql.conf', 'wal_buffers = 16MB');
	$old->restart;
	set_tests($old, test_point => 'copy-end:wait,copy-read-again:2:kill', test_mutation => $mutation);
	my $holder = IndexMover::Session->new($old);
	$holder->run('SELECT pg_advisory_lock(0, 5959)');
	my $job = sql("SELECT max(job) FROM move_table('big', '$to', wait => false)");
	$old->wait_for_log(qr/test point "copy-end": waiting/, $log);
	# what was logged before that, pg_rewind does not look at
	sql('CHECKPOINT');
	$old->wait_for_catchup($new, 'replay', $old->lsn('insert'));
	$new->promote;
	poll_until($new, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');
	$new->safe_psql('postgres', 'CHECKPOINT');
	sql('UPDATE big SET v = v + 1');
	my $writer = sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	kill 'STOP', $writer;
	$holder->send('SELECT pg_advisory_unlock(0, 5959)');
	$old->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
	wait_until_up($old);
	$old->stop;
	$new->stop;
	my $settings = slurp_file($old->data_dir . '/postgresql.conf');
	command_ok([ 'pg_rewind', '--target-pgdata', $old->data_dir, '--source-pgdata', $new->data_dir ], "$name: pg_rewind");
	unlink $old->data_dir . '/postgresql.conf', $old->data_dir . '/postgresql.auto.conf';
	append_to_file($old->data_dir . '/postgresql.conf', $settings);
	$new->start;
	$old->enable_streaming($new);
	$old->set_standby_mode;
	$old->start;
	($node, $standby) = ($new, $old);
	set_tests($node);
	like(resume($job), qr/^moved\|.*went on where job $job had ended/, "$name: goes on");
	return ($name, $job);
}
if (faults() && 'rewound' =~ /$only/)
{
	@others = ();
	$standby = new_standby('rewind');
	my ($name) = goes_on_after_rewind('');
	table_ok($node, 'big', $name);
	same_table_ok($node, $standby, 'big', $name);
	($name) = goes_on_after_rewind('resume-unflushed');
	table_ok($node, 'big', $name);
	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	my @different = IndexMover::Tables::different_blocks($node, $standby, 'big', 'main', 'postgres', \my $number);
	cmp_ok(scalar @different, '>', 0, "$name: the standby has other blocks");
}
$node->stop;
$standby->stop;
done_testing();
