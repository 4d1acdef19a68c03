# A table's copy is exact although the hard things happen after the bulk copy has passed
# the blocks: each kind of change, a truncation, a visibility map of several pages; on a
# standby and after a crash, too.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::ExactTable;
use IndexMover::Pages;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

start_servers('exact_table');

# All that happens between the bulk copy and the swap.
my @changes = (
	[ 'HOT updates', 'UPDATE s.changed SET v = v + 1 WHERE k BETWEEN 100 AND 900 AND big IS NULL', qr/Heap:HOT_UPDATE/ ],
	[ 'updates that are not HOT', 'UPDATE s.changed SET k = -k WHERE k BETWEEN 2000 AND 2500', qr/Heap:UPDATE/ ],
	[ 'TOAST updates', q{UPDATE s.changed SET big = big || 'x' WHERE big IS NOT NULL AND k BETWEEN 3000 AND 9000},
		qr/Heap:HOT_UPDATE|Heap:UPDATE/ ],
	[ 'deletes', 'DELETE FROM s.changed WHERE k BETWEEN 4000 AND 4300', qr/Heap:DELETE/ ],
	[ 'an abort', 'BEGIN; SAVEPOINT a; UPDATE s.changed SET v = -7 WHERE k BETWEEN 5000 AND 5200; ROLLBACK TO a; DELETE FROM s.changed '
		. 'WHERE k = 5300; ROLLBACK', qr/Heap:HOT_UPDATE/ ],
	[ 'row locks', 'BEGIN; SELECT count(*) FROM (SELECT FROM s.changed WHERE k BETWEEN 12000 AND 12200 FOR UPDATE) x; COMMIT',
		qr/Heap:LOCK/ ],
	[ 'multixacts', 'BEGIN; SELECT count(*) FROM (SELECT FROM s.changed WHERE k BETWEEN 13000 AND 13200 FOR KEY SHARE) x; SAVEPOINT a; '
		. 'UPDATE s.changed SET v = 9 WHERE k BETWEEN 13000 AND 13100; COMMIT', qr/Heap:LOCK/ ],
	[ 'VACUUM, which sets bits', 'VACUUM s.changed', qr/Heap2:VISIBLE|Heap2:PRUNE_VACUUM/ ],
	[ 'VACUUM FREEZE', 'VACUUM (FREEZE) s.changed', qr/Heap2:FREEZE_PAGE|Heap2:PRUNE_VACUUM_SCAN/ ],
	[ 'writes that clear bits',
		'UPDATE s.changed SET v = v + 1 WHERE k BETWEEN 15000 AND 15500; DELETE FROM s.changed WHERE k BETWEEN 18000 AND 18010; BEGIN; '
			. 'SELECT count(*) FROM (SELECT FROM s.changed WHERE k BETWEEN 16000 AND 16500 FOR SHARE) x; COMMIT; BEGIN; SELECT count(*) '
				. 'FROM (SELECT FROM s.changed WHERE k BETWEEN 17000 AND 17200 FOR KEY SHARE) x; SAVEPOINT a; UPDATE s.changed SET v = 9 '
					. 'WHERE k BETWEEN 17000 AND 17100; COMMIT', qr/Heap:HOT_UPDATE/ ],
	[ 'an extension', 'INSERT INTO s.changed (k, v, big) SELECT g, 0, CASE WHEN g % 50 = 0 THEN repeat(md5(g::text), 150) END FROM '
		. 'generate_series(20001, 24000) g', qr/Heap:INSERT/ ],
);

my $map = q{SELECT count(*) FILTER (WHERE all_visible), count(*) FILTER (WHERE all_frozen) FROM pg_visibility_map('s.changed')};

if (part('changed'))
{
	make_changed();
	my @seen;
	my $n = 0;
	my $verdict = '';
	my $log = -s $node->logfile;
	my $rows = move_in_steps(
		change => sub {
			my ($relation, $kind) = @_;
			my $heap = $node->safe_psql('postgres',
				"SELECT (SELECT oid FROM pg_tablespace WHERE spcname = (SELECT coalesce((SELECT spcname FROM pg_tablespace t WHERE t.oid "
					. "= reltablespace), 'pg_default') FROM pg_class WHERE oid = $relation)) || '/' || (SELECT oid FROM pg_database "
						. "WHERE datname = 'postgres') || '/' || pg_relation_filenode($relation)");
			my $before = $node->safe_psql('postgres', "SELECT pg_relation_size($relation)");
			foreach my $change (grep { $kind eq 'r' || $_->[0] =~ /TOAST|VACUUM|extension/ } @changes)
			{
				my ($name, $sql, $records) = @$change;
				my $map_before = $node->safe_psql('postgres', $map);
				my $lsn = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
				$node->safe_psql('postgres', $sql =~ s/\bk BETWEEN/abs(k) BETWEEN/gr);
				# so that all of it can be read
				$node->safe_psql('postgres', 'SELECT txid_current(); CHECKPOINT') if $name eq 'an extension';
				$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
				my $types = $node->safe_psql('postgres',
					"SELECT string_agg(DISTINCT resource_manager || ':' || split_part(record_type, '+', 1), ' ') FROM "
						. "pg_get_wal_records_info('$lsn', pg_current_wal_flush_lsn()) WHERE block_ref LIKE '%rel $heap %'") // '';
				my $map_after = $node->safe_psql('postgres', $map);
				if ($kind eq 'r')
				{
					like($types, $records, "changed: $name after the bulk copy");
					my @had = split /\|/, $map_before;
					my @has = split /\|/, $map_after;
					cmp_ok($has[0], '>', $had[0], "changed: and $had[0] visible pages become $has[0]") if $name =~ /sets bits/;
					cmp_ok($has[1], '>', $had[1], "changed: and $had[1] frozen pages become $has[1]") if $name =~ /FREEZE/;
					if ($name =~ /clear bits/)
					{
						cmp_ok($has[0], '<', $had[0], "changed: and $had[0] visible pages become $has[0]");
						cmp_ok($has[0] - $has[1], '>', $had[0] - $had[1], 'changed: and of some pages only the frozen bit is cleared');
					}
				}
				elsif ($kind eq 't' && $name eq 'TOAST updates')
				{
					like($types, qr/Heap:INSERT|Heap2:MULTI_INSERT/, "changed, TOAST table: $name after the bulk copy");
					like($types, qr/Heap:DELETE/, "changed, TOAST table: and deletes");
				}
			}
			cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size($relation)"), '>', $before,
				"changed, $kind: extended after the bulk copy");
			# 4096: xmax is a multixact
			cmp_ok($node->safe_psql('postgres',
				"SELECT count(*) FROM generate_series(0, pg_relation_size('s.changed') / current_setting('block_size')::int - 1) b, "
					. "heap_page_items(get_raw_page('s.changed', b::int)) WHERE t_infomask & 4096 <> 0"),
				'>', 100, 'changed: there are multixacts') if $kind eq 'r';
		},
		compare => sub {
			my ($kind, $old, $new) = @_;
			$n++;
			$kind eq 'i' ? same_files_ok($old, $new, $page_size, 'changed, TOAST index, under the lock')
			  : same_heap_files_ok($old, $new, $page_size, "changed, $kind, under the lock");
		});
	is($rows, "table|moved||\ntoast|moved||\ntoast index|moved||", 'changed: moved, and verified');
	is($n, 3, 'changed: three relations compared');
	unlike(slurp_file($node->logfile, $log), qr/starting the copy/, 'changed: it was this copy');
	my $fast = $node->safe_psql('postgres',
		"SELECT min(blocks_recopied) FROM index_mover_history WHERE kind = 'table' AND job = (SELECT max(job) FROM index_mover_history)");
	cmp_ok($fast, '>', 200, "changed: $fast blocks were copied again");
	is(witnesses($node, 's.changed'), '', 'changed: no witness against it');
	flush_both();
	is(rows_of($standby, 's.changed'), rows_of($node, 's.changed'), 'changed, standby: the same rows');
	same_map_on_ok($node, $standby, $page_size, 'changed, standby', map { (split / /, $_, 3)[2] } paths('s'));
	files_ok($_, 'changed') foreach $node, $standby;
	$node->safe_psql('postgres', $changes[$_][1] =~ s/\bk BETWEEN/abs(k) BETWEEN/gr) foreach 0, 2, 3, 8, 9;
	is(witnesses($node, 's.changed'), '', 'changed, and changed again after the move: no witness against it');
}

# ---- a truncation after giving way -----------------------------------------------
# No VACUUM can truncate while we hold our lock; DDL that waits makes us give it back.
foreach my $what (picked { $_ eq 'table' } 'forks truncated', grep { part('truncated') } 'table', 'map')
{
	make_plain();
	my $log = -s $node->logfile;
	set_tests($node, test_point => 'copy-end:wait,gave-way:wait2');
	my @locks = map { my $l = IndexMover::Session->new($node); $l->run("SELECT pg_advisory_lock(0, $_)"); $l } 5959, 5960;
	my $job = $node->safe_psql('postgres', "SELECT max(job) FROM move_table('s.plain', 'regress_fast', wait => false)");
	wait_until_told($log, qr/test point "copy-end": waiting/, 1);
	my $ddl = IndexMover::Session->new($node);
	$ddl->send('ALTER TABLE s.plain ADD n int');
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $ddl->pid, 't', "truncated $what: DDL waits");
	$locks[0]->end;
	wait_until_told($log, qr/test point "gave-way": waiting/, 1);
	$ddl->answer;
	is($ddl->errors, '', "truncated $what: DDL passes");
	$ddl->end;
	my $state = sub { return $node->safe_psql('postgres', $what eq 'map'
		? q{SELECT count(*) FROM pg_visibility_map('s.plain') WHERE all_visible} : "SELECT pg_relation_size('s.plain') / $page_size"); };
	my $before = $state->();
	$node->safe_psql('postgres', $what eq 'map' ? q{SELECT pg_truncate_visibility_map('s.plain')}
		: 'DELETE FROM s.plain WHERE k > 15000; VACUUM s.plain');
	my $after = $state->();
	cmp_ok($after, '<', $before - 50, "truncated $what: from $before to $after after giving way");
	# and some of it is there again
	$node->safe_psql('postgres', 'INSERT INTO s.plain (k, v) SELECT g, 1 FROM generate_series(30001, 31000) g') if faults('growing again');
	$locks[1]->end;
	$node->safe_psql('postgres', "CALL wait_for_move($job)");
	is($node->safe_psql('postgres', "SELECT DISTINCT status FROM index_mover_history WHERE job = $job"), 'moved', "truncated $what: moved");
	like(slurp_file($node->logfile, $log), qr/starting the copy of table "plain" again, because its file was truncated/,
		"truncated $what: the copy was made again");
	set_tests($node);
	is(witnesses($node, 's.plain'), '', "truncated $what: no witness against it");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM s.plain WHERE k <= 15000'), '15000', "truncated $what: all rows");
	flush_both();
	is(rows_of($standby, 's.plain'), rows_of($node, 's.plain'), "truncated $what, standby: the same rows");
	same_map_on_ok($node, $standby, $page_size, "truncated $what, standby", map { (split / /, $_, 3)[2] } paths('s'));
	files_ok($node, "truncated $what");
	leftovers_ok($node, "truncated $what", within => 5);
}

# ---- a map of several pages, of which each is changed after the first comparison -------
# One page stands for 255 MB.
if (part('large') && faults('a visibility map of two pages'))
{
	my $per_map_page = ($page_size - 24) * 4;
	$node->safe_psql('postgres', <<SQL);
DROP SCHEMA IF EXISTS s CASCADE;
CREATE SCHEMA s;
CREATE TABLE s.large (k int, filler text) TABLESPACE regress_slow;
ALTER TABLE s.large ALTER filler SET STORAGE plain, ALTER filler SET NOT NULL;
INSERT INTO s.large SELECT g, repeat('x', $page_size / 2 + 100) FROM generate_series(1, $per_map_page + 500) g;
CREATE INDEX large_k ON s.large (k);
VACUUM (FREEZE) s.large;
SQL
	my @had;
	my $rows = move_in_steps(what => 's.large', at => 'swap-asking',
		change => sub { $node->safe_psql('postgres',
			"DELETE FROM s.large WHERE k IN (7, $per_map_page + 100); BEGIN; SELECT k FROM s.large WHERE k = $per_map_page + 200 FOR "
				. "SHARE; COMMIT") },
		compare => sub {
			return if $_[0] ne 'r';    # its TOAST table is empty
			cmp_ok(-s "$_[1]_vm", '>=', 2 * $page_size, 'large: the map has two pages');
			same_heap_files_ok(@_[1, 2], $page_size, 'large, under the lock');
		});
	is($rows, "table|moved||\ntoast|moved||\ntoast index|moved||", 'large: moved');
	note 'large: lock time ', $node->safe_psql('postgres', 'SELECT lock_time FROM index_mover_history ORDER BY job DESC LIMIT 1');
	is($node->safe_psql('postgres',
		q{SELECT count(*) FILTER (WHERE NOT all_visible), count(*) FILTER (WHERE NOT all_frozen) FROM pg_visibility_map('s.large')}), '2|3',
			'large: what was cleared is cleared');
	is(witnesses($node, 's.large'), '', 'large: no witness against it');
	flush_both();
	same_map_on_ok($node, $standby, $page_size, 'large, standby', map { (split / /, $_, 3)[2] } paths('s'));
	files_ok($_, 'large') foreach $node, $standby;
}

end_servers();
done_testing();
