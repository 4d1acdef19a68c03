# Transactions of every kind beside a move: serializable ones with the table in
# their predicates, open cursors, prepared and parallel plans, commits that are
# not waited for, conflicts, deferred and foreign keys, many subtransactions and
# multixacts, a long pending list, BRIN ranges that come and go, and TOAST.
#
# Fault (transactions): write skew of serializable transactions
# Fault (transactions): open at the swap: cursors by index, index-only and bitmap scan, a
#   parallel query; WITH HOLD; prepared and parallel plans
# Fault (transactions): commits that are not waited for, and not flushed when the lock is asked
#   for (and a copy that reads only what is flushed)
# Fault (transactions): ON CONFLICT, MERGE, deferred, foreign keys, exclusion (also 098, 016)
# Fault (transactions): COPY, GIN pending list, BRIN summaries
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_faults();
needs_test_points();

my $node = new_node('transactions', conf => <<CONF);
max_parallel_workers = 4
shared_buffers = 64MB
jit = off
CONF
$node->safe_psql('postgres', <<SQL);
CREATE TABLE tx (id int PRIMARY KEY USING INDEX TABLESPACE regress_slow, k int, s text) WITH (fillfactor = 70);
INSERT INTO tx SELECT g, g % 100, md5(g::text) FROM generate_series(1, 20000) g;
CREATE INDEX tx_k ON tx (k) TABLESPACE regress_slow;
CREATE INDEX tx_s ON tx (s) TABLESPACE regress_slow;
VACUUM ANALYZE tx;
SELECT oracle.remember_keys('tx');
SQL

my $KIND = 'kinds of transactions beside a move';

sub move
{
	my ($index, $method) = @_;
	my $to = elsewhere($node, $index);
	return "SELECT status, sqlstate FROM move_indexes('$index', '$to', method => '$method')";
}

# Run $during while a copy of the index stands still before its swap, or at another
# point; it ends, and all is well.  Options: after => what to look at then; point;
# least => so many blocks have changed since they were copied, and were copied again
# (2: block 0, which always is, and one more); max_keys.
sub beside_copy
{
	my ($name, $table, $index, $during, %options) = @_;
	my $least = $options{least} // 2;
	$node->safe_psql('postgres', "SELECT oracle.remember_metadata('$table')");
	my $move = $options{move} || sub { return move($index, 'copy'); };
	my $call = held_at($node, $options{point} || 'copy-synced', $move->());
	$during->();
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", "$name: moved") or diag $err;
	my $recopied = $node->safe_psql('postgres',
		"SELECT blocks_recopied FROM index_mover_history WHERE kind LIKE '%index' ORDER BY job DESC LIMIT 1");
	cmp_ok($recopied, '>=', $least, "$name: at least $least blocks copied again") if $least;
	$options{after}->() if $options{after};
	survived_ok($node, $table, $name, $move->(), max_keys => $options{max_keys} || 200, count => $KIND);
	return;
}

# ---- write skew: one of two serializable transactions has to fail ------------------
# Who is on call: both see two and go, while a move wants to swap the index that they
# have read by; it has to wait for both.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE skew (id int PRIMARY KEY USING INDEX TABLESPACE regress_slow, room int, on_call bool);
INSERT INTO skew SELECT g, g % 500, true FROM generate_series(1, 4000) g;
CREATE INDEX skew_room ON skew (room) TABLESPACE regress_slow;
VACUUM ANALYZE skew;
SELECT oracle.remember_keys('skew'), oracle.remember_metadata('skew');
SQL

# What was tried without a move has to hold for itself.
sub skew_ok
{
	my ($name, $what) = @_;
	return verdict_ok($node, 'skew', $name, max_keys => 100) if $what eq 'no move';
	return survived_ok($node, 'skew', $name, move('skew_room', $what), max_keys => 100, count => $KIND);
}

foreach my $what ('no move', 'copy', 'rebuild')
{
	my @s = map { IndexMover::Session->new($node) } 1 .. 2;
	$_->run('SET enable_seqscan = off; SET enable_bitmapscan = off; BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM skew WHERE '
		. 'room = 7 AND on_call') for @s;
	my $call;
	if ($what eq 'copy')
	{
		# the swap waits for those who have read by the index; so they go on first
		$call = held_at($node, 'copy-synced', move('skew_room', 'copy'));
	}
	elsif ($what eq 'rebuild')
	{
		$call = start_call($node, 'mover', move('skew_room', 'rebuild'));
		wait_for_phase($node, 'waiting%');
	}
	$s[0]->run('UPDATE skew SET on_call = false WHERE id = 7');
	$s[1]->send('UPDATE skew SET on_call = false WHERE id = 507');
	my $failed = 0;
	$s[1]->answer;
	$failed = 1 if $s[1]->errors =~ /40001/;
	foreach my $s (@s)
	{
		$s->send('COMMIT');
		$s->answer;
		$failed = 1 if $s->errors =~ /40001/;
	}
	is($failed, 1, "write skew, $what: one of the two fails with 40001");
	$_->end for @s;
	if ($call)
	{
		let_go($call);
		my ($rc, $out, $err) = finish_call($call);
		is($out, "moved|\n", "write skew, $what: moved") or diag $err;
	}
	$node->safe_psql('postgres', 'UPDATE skew SET on_call = true WHERE NOT on_call');
	skew_ok("write skew, $what", $what);
}

# Between the reads of one and the writes of the other a swap can come only if the
# one has committed: his predicate locks of the index are still needed then, since the
# other puts a row where he has found none.  (A rebuild waits for the other's snapshot.)
foreach my $what ('no move', 'copy')
{
	my ($first, $second) = map { IndexMover::Session->new($node) } 1 .. 2;
	$_->run('SET enable_seqscan = off; SET enable_bitmapscan = off; BEGIN ISOLATION LEVEL SERIALIZABLE') for $first, $second;
	my $before = $node->safe_psql('postgres', 'SELECT count(*) FROM skew WHERE room = 407');
	$first->run('SELECT count(*) FROM skew WHERE room = 7');
	$second->run('SELECT count(*) FROM tx WHERE id = 1');
	$first->run("INSERT INTO skew SELECT max(id) + 1, 407, true FROM skew; COMMIT");
	is($node->safe_psql('postgres', "SELECT count(*) > 0 FROM pg_locks WHERE mode = 'SIReadLock' AND relation = 'skew_room'::regclass"),
		't', "a row where none was, $what: the predicate lock is there");
	if ($what eq 'copy')
	{
		is($node->safe_psql('postgres', move('skew_room', 'copy')), 'moved|', 'a row where none was, copy: moved in between');
		is($node->safe_psql('postgres', "SELECT count(*) > 0 FROM pg_locks WHERE mode = 'SIReadLock' AND relation = 'skew_room'::regclass"),
			't', 'a row where none was, copy: it is still there');
	}
	is($second->run('SELECT count(*) FROM skew WHERE room = 407'), $before, "a row where none was, $what: the other does not see it");
	$second->send('INSERT INTO skew SELECT max(id) + 2, 7, true FROM skew');
	$second->answer;
	my $failed = $second->errors =~ /40001/ ? 1 : 0;
	$second->send('COMMIT');
	$second->answer;
	$failed = 1 if $second->errors =~ /40001/;
	is($failed, 1, "a row where none was, $what: the other fails with 40001");
	$_->end for $first, $second;
	skew_ok("a row where none was, $what", $what);
}

# ---- cursors, prepared and parallel plans over a swap --------------------------------
{
	my $plans = IndexMover::Session->new($node);
	$plans->run(<<SQL);
SET enable_seqscan = off; SET enable_bitmapscan = off;
PREPARE by_index(int) AS SELECT count(*), sum(id) FROM tx WHERE k = \$1;
PREPARE only_index(int) AS SELECT count(*) FROM tx WHERE k < \$1;
SQL
	my @before = map { $plans->run("EXECUTE by_index($_); EXECUTE only_index($_)") } 1 .. 6;
	my $holdable = IndexMover::Session->new($node);
	$holdable->run('SET enable_seqscan = off; BEGIN; DECLARE kept CURSOR WITH HOLD FOR SELECT id FROM tx WHERE k = 5 ORDER BY id; FETCH '
		. '3 FROM kept; COMMIT');
	my $parallel_settings = 'SET enable_seqscan = off; SET enable_bitmapscan = off; SET parallel_setup_cost = 0; SET parallel_tuple_cost '
		. '= 0; SET min_parallel_index_scan_size = 0; SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2';
	my $parallel = IndexMover::Session->new($node);
	$parallel->run("$parallel_settings; PREPARE p AS SELECT count(*), sum(length(s)) FROM tx WHERE k BETWEEN 10 AND 60");
	like($parallel->run('EXPLAIN EXECUTE p'), qr/Parallel Index/, 'a parallel index scan');
	my $sum = $parallel->run('EXECUTE p');
	# who is in the middle of the index keeps the swap waiting: a cursor by each kind of
	# scan, and, since no cursor is parallel, a query that waits to be told
	my $nodes = { map { $_ =>
		"SET enable_seqscan = off; SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SET "
			. "enable_${_}scan = on; SET max_parallel_workers_per_gather = 0;" } qw(index indexonly bitmap) };
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE told ();
CREATE FUNCTION until_told(int) RETURNS bool LANGUAGE plpgsql PARALLEL SAFE AS $$
BEGIN
	WHILE NOT EXISTS (SELECT FROM told) LOOP PERFORM pg_sleep(0.02); END LOOP;
	RETURN true;
END $$;
SQL
	my @scans = (
		[ 'an index scan', $nodes->{index}, 'id', qr/^ *-> +Index Scan using tx_k|^Index Scan using tx_k/m ],
		[ 'an index-only scan', "$nodes->{indexonly} SET enable_indexscan = on", 'k', qr/Index Only Scan using tx_k/ ],
		[ 'a bitmap scan', $nodes->{bitmap}, 'id', qr/Bitmap Index Scan on tx_k/ ],
		[ 'a parallel scan', $parallel_settings, undef, qr/Parallel Index Scan using tx_k/ ]);
	foreach my $method ('copy', 'rebuild')
	{
		$node->safe_psql('postgres', "SELECT oracle.remember_metadata('tx')");
		foreach my $scan (@scans)
		{
			my ($name, $settings, $column, $plan) = @$scan;
			my $open = IndexMover::Session->new($node);
			my $query = $column ? "SELECT $column FROM tx WHERE k = 9"
				: 'SELECT count(*) FROM tx WHERE k BETWEEN 10 AND 60 AND until_told(id)';
			$node->safe_psql('postgres', 'TRUNCATE told');
			$open->run($settings);
			like($open->run("EXPLAIN $query"), $plan, "$method: $name of tx_k");
			$column ? $open->run("BEGIN; DECLARE here CURSOR FOR $query; FETCH 2 FROM here") : $open->send($query);
			poll_until($node, "SELECT count(*) > 0 FROM pg_locks WHERE relation = 'tx_k'::regclass", 't', "$method: $name has begun");
			my $call = start_call($node, 'mover', move('tx_k', $method));
			wait_for_phase($node, 'waiting%');
			if ($column)
			{
				is(scalar(split /\n/, $open->run('FETCH ALL FROM here')), 198, "$method: $name, open at the swap, reads to its end");
				$open->run('COMMIT');
			}
			else
			{
				$node->safe_psql('postgres', 'INSERT INTO told DEFAULT VALUES');
				is($open->answer, 51 * 200, "$method: $name, open at the swap, reads to its end") or diag $open->errors;
			}
			$open->end;
			my ($rc, $out, $err) = finish_call($call);
			is($out, "moved|\n", "$method: $name: moved after that") or diag $err;
			my @after = map { $plans->run("EXECUTE by_index($_); EXECUTE only_index($_)") } 1 .. 6;
			is_deeply(\@after, \@before, "$method: $name: prepared statements give what they gave");
			is($parallel->run('EXECUTE p'), $sum, "$method: $name: so does a parallel one");
		}
		survived_ok($node, 'tx', "$method beside scans of each kind", move('tx_k', $method), max_keys => 100);
		count_fault($KIND, scalar @scans);
	}
	is(scalar(split /\n/, $holdable->run('FETCH ALL FROM kept')), 197, 'a cursor WITH HOLD reads to its end');
	$_->end for $plans, $holdable, $parallel;
}

# ---- plans made before a swap know what the new tablespace costs ----------------------
$node->safe_psql('postgres', <<SQL);
CREATE TABLE costs (k int);
INSERT INTO costs SELECT generate_series(1, 20000);
CREATE INDEX costs_k ON costs (k) TABLESPACE regress_slow;
VACUUM ANALYZE costs;
ALTER TABLESPACE regress_slow SET (random_page_cost = 1000000);
ALTER TABLESPACE regress_fast SET (random_page_cost = 1);
SQL
{
	my $plan = IndexMover::Session->new($node);
	$plan->run('SET plan_cache_mode = force_generic_plan; PREPARE q(int) AS SELECT * FROM costs WHERE k = $1');
	like($plan->run('EXPLAIN (COSTS OFF) EXECUTE q(1)'), qr/Seq Scan/, 'a prepared plan leaves an index on slow storage alone');
	is($node->safe_psql('postgres', move('costs_k', 'copy')), 'moved|', 'that index is copied to fast storage');
	like($plan->run('EXPLAIN (COSTS OFF) EXECUTE q(1)'), qr/Index.* costs_k/, 'the same statement is planned again, and uses it');
	$plan->end;
}
$node->safe_psql('postgres', "ALTER TABLESPACE $_ RESET (random_page_cost)") for 'regress_slow', 'regress_fast';

# ---- commits that are not waited for, up to the moment before the lock -----------------
# What they have written is not on disk when the lock is asked for; few rows, so that
# the first attempt copies what they have changed, and not one after the WAL writer's turn.
$node->safe_psql('postgres',
	"ALTER SYSTEM SET wal_writer_delay = '10s'; ALTER SYSTEM SET bgwriter_lru_maxpages = 0; SELECT pg_reload_conf()");
my $not_flushed = sub {
	my $async = IndexMover::Session->new($node);
	$async->run('SET synchronous_commit = off');
	$async->run("UPDATE tx SET s = md5(s) WHERE id = 1000 * $_") for 1 .. 9;
	# should another process have just flushed it, once more
	my $tries = 0;
	until ($async->run('UPDATE tx SET s = md5(s) WHERE id = 10000; SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()') eq 't')
	{
		die 'all WAL is flushed at once' if ++$tries > 1000;
	}
	$async->end;
	return $tries;
};
beside_copy('synchronous_commit = off', 'tx', 'tx_s', sub {
		my $tries = $not_flushed->();
		pass("what was committed is not flushed (tries: $tries)");
	}, point => 'swap-asking');

$node->safe_psql('postgres', 'ALTER SYSTEM RESET wal_writer_delay; ALTER SYSTEM RESET bgwriter_lru_maxpages; SELECT pg_reload_conf()');

# ---- many subtransactions, rolled back inserts, multixacts -----------------------------
beside_copy('subtransactions and multixacts', 'tx', 'tx_k', sub {
		$node->safe_psql('postgres', <<'SQL');
BEGIN;
INSERT INTO tx SELECT g, g % 100, 'rolled back' FROM generate_series(100001, 110000) g;
ROLLBACK;
DO $$
BEGIN
	FOR i IN 1 .. 300 LOOP
		BEGIN
			UPDATE tx SET k = k + 100 WHERE id = i;
			IF i % 3 = 0 THEN RAISE EXCEPTION 'back'; END IF;
		EXCEPTION WHEN raise_exception THEN NULL;
		END;
	END LOOP;
END $$;
SQL
		my @s = map { IndexMover::Session->new($node) } 1 .. 3;
		$_->run('BEGIN; SELECT count(*) FROM (SELECT 1 FROM tx WHERE id < 500 FOR KEY SHARE) q') for @s;
		$s[0]->run('UPDATE tx SET s = md5(s) WHERE id < 100');
		$_->run('COMMIT') for @s;
		$_->end for @s;
	});

# ---- conflicts, MERGE, deferred and foreign keys, exclusion ------------------------------
$node->safe_psql('postgres', <<SQL);
CREATE TABLE parent (id int PRIMARY KEY USING INDEX TABLESPACE regress_slow, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO parent SELECT g, g FROM generate_series(1, 1000) g;
CREATE TABLE child (id int, parent int REFERENCES parent ON DELETE CASCADE);
INSERT INTO child SELECT g, g FROM generate_series(1, 1000) g;
CREATE INDEX child_parent ON child (parent) TABLESPACE regress_slow;
CREATE TABLE booked (r int4range, EXCLUDE USING gist (r WITH &&) USING INDEX TABLESPACE regress_slow);
INSERT INTO booked SELECT int4range(g * 10, g * 10 + 9) FROM generate_series(1, 500) g;
SQL
foreach my $case ([ 'parent', 'parent_pkey' ], [ 'parent', 'parent_u_key' ], [ 'child', 'child_parent' ], [ 'booked', 'booked_r_excl' ])
{
	my ($table, $index) = @$case;
	beside_copy("constraints, $index", $table, $index, sub {
			$node->safe_psql('postgres', <<SQL);
INSERT INTO parent VALUES (5, 2005) ON CONFLICT (id) DO UPDATE SET u = -parent.u;
MERGE INTO parent p USING (VALUES (7, 70000), (3000, 3000)) v (id, u) ON p.id = v.id
  WHEN MATCHED THEN UPDATE SET u = v.u WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.u);
BEGIN; UPDATE parent SET u = u + 1 WHERE id BETWEEN 100 AND 200; UPDATE parent SET u = u - 1 WHERE id BETWEEN 100 AND 200; COMMIT;
DELETE FROM parent WHERE id = 3000;
UPDATE child SET parent = parent % 999 + 1 WHERE id % 3 = 0;
-- of those that are there, the index says so; a seventh, and those above 5000, are new
DELETE FROM booked WHERE lower(r) % 7 = 0 OR lower(r) > 5000;
INSERT INTO booked SELECT int4range(g * 10, g * 10 + 9) FROM generate_series(1, 800) g ON CONFLICT DO NOTHING;
SQL
		}, after => sub {
			is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT r) FROM booked'), '800|800',
				"$index moved: all are booked, each once");
			foreach my $bad ([ 'INSERT INTO parent VALUES (9, 99999)', '23505' ],
				[ 'INSERT INTO parent VALUES (99999, 300)', '23505' ],
				[ 'INSERT INTO child VALUES (1, 424242)', '23503' ],
				[ 'INSERT INTO booked VALUES (int4range(5, 55))', '23P01' ],
				[ 'INSERT INTO booked VALUES (int4range(7005, 7006))', '23P01' ])
			{
				my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$bad->[0]");
				like($err, qr/$bad->[1]/, "$index moved: $bad->[0]");
			}
		});
}

# ---- GIN's pending list, BRIN's ranges ------------------------------------------------------
# (Each key is asked for, and for each of them the whole list is read.)
$node->safe_psql('postgres', <<SQL);
CREATE TABLE words (id int, w int[]) WITH (autovacuum_enabled = off);
CREATE INDEX words_w ON words USING gin (w) WITH (fastupdate = on, gin_pending_list_limit = 65536) TABLESPACE regress_slow;
INSERT INTO words SELECT g, ARRAY[g % 997, g % 13] FROM generate_series(1, 20000) g;
CREATE TABLE ranges (id int, filler text);
CREATE INDEX ranges_i ON ranges USING brin (id) WITH (pages_per_range = 2, autosummarize = on) TABLESPACE regress_slow;
INSERT INTO ranges SELECT g, repeat('x', 100) FROM generate_series(1, 8000) g;
SQL
cmp_ok($node->safe_psql('postgres', "SELECT pending_pages FROM gin_pending_list('words_w')"), '>', 50, 'a long pending list');
beside_copy('GIN pending list that grows', 'words', 'words_w', sub {
		$node->safe_psql('postgres', "INSERT INTO words SELECT g, ARRAY[g % 997, g % 17] FROM generate_series(20001, 30000) g");
	});
beside_copy('GIN pending list that is flushed', 'words', 'words_w', sub {
		$node->safe_psql('postgres', "SELECT gin_clean_pending_list('words_w'); VACUUM words");
	});
# this takes a lock on the index that the copy has to give way to, and so may begin
# before the copy goes on, or end after it
my $brin = IndexMover::Session->new($node);
beside_copy('BRIN ranges', 'ranges', 'ranges_i', sub {
		$brin->send(<<SQL);
SELECT brin_desummarize_range('ranges_i', 4), brin_desummarize_range('ranges_i', 40);
INSERT INTO ranges SELECT g, repeat('y', 100) FROM generate_series(8001, 16000) g;
UPDATE ranges SET id = -id WHERE id % 100 = 0;
SELECT brin_summarize_new_values('ranges_i');
SQL
	}, least => 0, after => sub {
		$brin->answer;
		is($brin->errors, '', 'BRIN ranges are summarized and desummarized');
	});
$brin->end;
my $copy = IndexMover::Session->new($node);
beside_copy('COPY of many rows', 'tx', 'tx_s', sub {
		append_to_file($node->basedir . '/rows', join('', map { "$_\t" . $_ % 100 . "\tcopied $_\n" } 200_001 .. 220_000));
		$copy->run('COPY tx FROM \'' . $node->basedir . "/rows'");
	});
$copy->end;

# ---- the index of a TOAST table, vacuumed --------------------------------------------------
# (The values are long enough for any size of a page.)
sub long_value
{
	my ($number) = @_;
	return "repeat(md5(($number)::text), current_setting('block_size')::int * 3 / 320)";
}
my ($of_g, $of_minus_id) = map { long_value($_) } 'g', '-id';
my ($toast, $toast_index) = split /\|/, $node->safe_psql('postgres', <<SQL);
CREATE TABLE wide (id int, big text) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
ALTER TABLE wide ALTER big SET STORAGE EXTERNAL;
INSERT INTO wide SELECT g, $of_g FROM generate_series(1, 5000) g;
SELECT t.reltoastrelid::regclass, x.indexrelid::regclass
  FROM pg_class t JOIN pg_index x ON x.indrelid = t.reltoastrelid WHERE t.oid = 'wide'::regclass;
SQL
$node->safe_psql('postgres', "SELECT oracle.remember_keys('$toast'); DELETE FROM wide WHERE id % 3 = 0");
my $toast_blocks = $node->safe_psql('postgres', "SELECT pg_relation_size('$toast_index') / current_setting('block_size')::int");
cmp_ok($toast_blocks, '>', 5, "the index of the TOAST table has $toast_blocks blocks");
# vacuum takes something out of each leaf page, that is of nearly all
beside_copy('TOAST, vacuumed', $toast, $toast_index, sub {
		$node->safe_psql('postgres', $_) foreach
		  "INSERT INTO wide SELECT g, $of_g FROM generate_series(5001, 6000) g",
		  "UPDATE wide SET big = $of_minus_id WHERE id % 10 = 0",
		  'DELETE FROM wide WHERE id % 7 = 0', 'VACUUM (INDEX_CLEANUP on) wide', 'CHECKPOINT';
	},
	least => int($toast_blocks * 3 / 4),
	# it is the last of the three files
	point => 'copy-synced:3',
	move => sub { return "SELECT status, sqlstate FROM move_table('wide', '" . elsewhere($node, $toast_index)
		. "') WHERE kind = 'toast index'" },
	after => sub {
		my $right = long_value('CASE WHEN id % 10 = 0 THEN -id ELSE id END');
		is($node->safe_psql('postgres', "SELECT count(*), bool_and(big = $right) FROM wide"),
			$node->safe_psql('postgres', 'SELECT count(*) FROM generate_series(1, 6000) g WHERE (g % 3 <> 0 OR g > 5000) AND g % 7 <> 0')
				. '|t',
			'TOAST, vacuumed: the long values as they were written');
	});

# ---- a VACUUM that leaves the indexes alone, then one that cleans them up ---------------
# (From what is deleted while the call waits its snapshot would keep them.)  The slots of
# the rows are used again at last.
$node->safe_psql('postgres', 'DELETE FROM tx WHERE id % 3 = 1');
$node->safe_psql('postgres', 'CREATE EXTENSION pgstattuple');
my $entries = "SELECT tuple_count + dead_tuple_count FROM pgstattuple('tx_s')";
my $with_dead = $node->safe_psql('postgres', $entries);
my $tx_blocks = $node->safe_psql('postgres', "SELECT pg_relation_size('tx_s') / current_setting('block_size')::int");
beside_copy('VACUUM without index cleanup, and with it', 'tx', 'tx_s', sub {
		my $more = 'INSERT INTO tx SELECT g, g % 100, md5(g::text) FROM generate_series(%d, %d) g';
		$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP off) tx');
		is($node->safe_psql('postgres', $entries), $with_dead, 'VACUUM without index cleanup: the index has what it had');
		$node->safe_psql('postgres', $_) foreach sprintf($more, 400001, 401000), 'VACUUM (INDEX_CLEANUP on, FREEZE) tx';
		is($node->safe_psql('postgres', $entries), $node->safe_psql('postgres', 'SELECT count(*) FROM tx'),
			'VACUUM with index cleanup: the index has an entry for each row');
		$node->safe_psql('postgres', sprintf($more, 401001, 402000));
	}, least => int($tx_blocks / 4));

$node->stop;
done_testing();
