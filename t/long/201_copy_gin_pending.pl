# GIN's pending list at 64 MB, flushed into the index while a copy stands still in the
# middle, by an INSERT whose rows are too many for it; while the copy wants its lock, by
# gin_clean_pending_list(), and by VACUUM; and beside a rebuild.  Run by "scripts/test --long",
# for it takes minutes; t/057_world_transactions.pl has the same in small.
#
# Fault (transactions): a GIN pending list of 64 MB, flushed in mid-copy, while the swap waits
#   for its lock, and in mid-rebuild
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

# (the more work_mem, the fewer steps the INSERT's flush takes; the others' have
# maintenance_work_mem)
my $node = new_node('gin_pending', conf => <<CONF);
shared_buffers = 128MB
max_wal_size = 2GB
work_mem = 64MB
maintenance_work_mem = 64MB
CONF

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(<<SQL);
CREATE SEQUENCE ids;
-- so many rows of 20 words each; not too many different ones, for each is looked up
CREATE FUNCTION more(n int) RETURNS TABLE (id bigint, w int[]) LANGUAGE sql VOLATILE AS \$\$
	SELECT nextval('ids'), ARRAY(SELECT (g % 3000 * 7919 + k * 104729) % 50021 FROM generate_series(1, 20) k)
	  FROM generate_series(1, n) g
\$\$;
CREATE TABLE words (id bigint, w int[]) WITH (autovacuum_enabled = off);
INSERT INTO words SELECT * FROM more(50000);
CREATE INDEX words_w ON words USING gin (w) WITH (fastupdate = on, gin_pending_list_limit = 65536) TABLESPACE regress_slow;
SELECT oracle.remember_metadata('words');
SQL

sub pending { return sql("SELECT pending_pages FROM gin_pending_list('words_w')"); }

# Rows until the list is nearly as long as it may get: 64 MB are 8192 pages.
sub fill
{
	sql(<<SQL);
DO \$\$
BEGIN
	WHILE (SELECT pending_pages FROM gin_pending_list('words_w')) < 7700 LOOP
		INSERT INTO words SELECT * FROM more(2000);
	END LOOP;
END \$\$;
SQL
	return pending();
}

# Fill the list, hold the move at the point, have the list flushed.
sub beside
{
	my ($name, $method, $point, $flush) = @_;
	my $to = elsewhere($node, 'words_w');
	my $before = fill();
	cmp_ok($before, '>=', 7700, "$name: the list has $before pages");
	my $call = held_at($node, $point,
		"SELECT status, sqlstate FROM move_indexes('words_w', '$to', method => '$method', settings => '{\"verify\": true}')");
	my $others = $flush->($call);
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", "$name: moved") or diag $err;
	if ($others)
	{
		$others->answer;
		is($others->errors, '', "$name: nor has the flush failed");
		$others->end;
	}
	is(tablespace_of_index($node, 'words_w'), $to, "$name: where it should be");
	my $after = pending();
	cmp_ok($after, '<', $before / 2, "$name: the list was flushed, and has $after pages");
	all_right($node, 'words', $name, within => 5, max_keys => 100);
	return;
}

beside('INSERT, in mid-copy', 'copy', 'copy-half', sub {
		my $before = pending();
		sql('INSERT INTO words SELECT * FROM more(20000)');
		cmp_ok(pending(), '<', $before / 2, 'INSERT, in mid-copy: it flushes the list');
		return undef;
	});

# The swap has to wait for it, for it holds a lock of the index.
beside('gin_clean_pending_list(), at the swap', 'copy', 'swap-asking', sub {
		my $session = IndexMover::Session->new($node);
		$session->send("SELECT gin_clean_pending_list('words_w')");
		poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE granted AND relation = \'words_w\'::regclass AND pid = ' . $session->pid,
			't', 'the flush to begin');
		return $session;
	});

beside('VACUUM, in mid-copy', 'copy', 'copy-end', sub {
		sql('VACUUM words');
		return undef;
	});

beside('gin_clean_pending_list(), in mid-rebuild', 'rebuild', 'rebuild-step-committed', sub {
		sql("SELECT gin_clean_pending_list('words_w')");
		return undef;
	});

$node->stop;
done_testing();
