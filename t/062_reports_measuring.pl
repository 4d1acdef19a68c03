# What reads pages never reads beyond them: under AddressSanitizer, where the
# compiler has it, indexes of every access method are measured, by samples and as
# a whole, as they are and each page with damage, thousands of times.  And what
# method auto may take to decide: blocks for a second.
#
# With "faults" in PG_TEST_EXTRA the indexes have a million entries and more, and
# each page has a hundred times as much damage.
#
# Fault (storage): a large index, or slow storage, while method `auto` decides
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $long = faults('a million rows, and a hundred times as much damage');
my $ROWS = $long ? 1_000_000 : 20_000;
my $DAMAGES = $long ? 1_000_000 : 10_000;      # of each access method
my $seed = $ENV{INDEX_MOVER_SEED} || int(rand(1e9));
note "seed $seed, $ROWS rows, " . (has_sanitizer() ? 'with AddressSanitizer' : 'without AddressSanitizer');

my $node = new_node('measured', conf => "fsync = off\nmax_wal_size = 8GB\nmaintenance_work_mem = 128MB\nshared_buffers = 128MB");

# ---------------------------------------------------------------------------
# Would it be seen?
# ---------------------------------------------------------------------------

SKIP:
{
	skip 'no AddressSanitizer', 4 unless has_sanitizer();
	$node->safe_psql('postgres', 'CREATE TABLE few AS SELECT generate_series(1, 1000) AS id; CREATE INDEX few_id ON few (id)');
	foreach my $way (qw(overrun underrun))
	{
		my $log = -s $node->logfile;
		my ($rc) = $node->psql('postgres', "SET index_mover.test_mutation = '$way'; SELECT * FROM index_bloat('few_id')");
		isnt($rc, 0, "$way: the session ends");
		wait_until_up($node);
		like(slurp_file($node->logfile, $log), qr/ERROR: AddressSanitizer: use-after-poison/, "$way: AddressSanitizer says why");
	}
	# these were meant
	$node->stop;
	$node->rotate_logfile;
	$node->start;
}

# ---------------------------------------------------------------------------
# Every access method
# ---------------------------------------------------------------------------

$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_trgm;
CREATE EXTENSION bloom;
CREATE TABLE m WITH (autovacuum_enabled = off) AS
	SELECT g AS id, g % 300 AS k, md5(g::text) AS t, ARRAY[g % 50, g % 1000, g] AS a,
		   point(g * 7919::bigint % 100003, g * 104729::bigint % 99991) AS p, int4range(g, g + g % 1000) AS r,
		   jsonb_build_object('k', g % 500, 'name', left(md5(g::text), 4), 'tags', ARRAY[g % 10, g % 77]) AS j
	  FROM generate_series(1, $ROWS) g;
CREATE UNIQUE INDEX m_btree ON m (id);
CREATE INDEX m_btree_dedup ON m (k);
CREATE INDEX m_btree_text ON m (t);
CREATE INDEX m_hash ON m USING hash (k);
CREATE INDEX m_hash_unique ON m USING hash (t);
CREATE INDEX m_gin_array ON m USING gin (a) WITH (gin_pending_list_limit = 65536);
CREATE INDEX m_gin_trgm ON m USING gin (t gin_trgm_ops);
CREATE INDEX m_gin_path ON m USING gin (j jsonb_path_ops);
CREATE INDEX m_gist_point ON m USING gist (p);
CREATE INDEX m_gist_range ON m USING gist (r);
CREATE INDEX m_gist_trgm ON m USING gist (left(t, 12) gist_trgm_ops);
CREATE INDEX m_spgist_point ON m USING spgist (p);
CREATE INDEX m_spgist_text ON m USING spgist (t);
CREATE INDEX m_brin ON m USING brin (t) WITH (pages_per_range = 1);
CREATE INDEX m_bloom ON m USING bloom (id, k);
DELETE FROM m WHERE id % 3 = 0 OR id BETWEEN $ROWS / 4 AND $ROWS / 2;
VACUUM m;
INSERT INTO m SELECT id + $ROWS, k, t, a, p, r, j FROM m WHERE id % 50 = 1;
SQL
my @indexes = split /\n/,
	$node->safe_psql('postgres', q(SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'm'::regclass ORDER BY 1));

my $unmeasured = qr/^m_(?:spgist|brin|bloom)/;

# Each look is in a session of its own: what one has allocated does not hide what
# another does wrong.
my $sane = <<'SQL';
bool_and(bloat_ratio_low BETWEEN 0 AND bloat_ratio_high AND bloat_ratio_high <= 1
	AND coalesce(bloat_ratio BETWEEN bloat_ratio_low AND bloat_ratio_high, true))
SQL
foreach my $index (@indexes)
{
	my $answer = $index =~ $unmeasured ? '' : 't';
	is($node->safe_psql('postgres', "SELECT $sane FROM generate_series(1, 5) n, index_bloat('$index', 100 * n)"), $answer,
		"$index: samples");
	is($node->safe_psql('postgres', "SELECT $sane FROM index_bloat('$index', exact => true)"), $answer, "$index: every page");
	like($node->safe_psql('postgres', "SELECT status FROM move_indexes('$index', 'regress_fast', dry_run => true)"),
		qr/^(planned|skipped)$/, "$index: a plan");
}
is($node->safe_psql('postgres', q(SELECT count(*) FROM index_report('m') WHERE index IS NOT NULL)), scalar @indexes, 'a report');
is($node->safe_psql('postgres', q(SELECT count(*) FROM move_indexes('m', 'regress_fast', dry_run => true))), scalar @indexes,
	'a plan for all');

# and what copies them, and reads the WAL for that
foreach my $to ('regress_fast', 'pg_default')
{
	is($node->safe_psql('postgres',
		"SELECT string_agg(name || ' ' || status, ', ') FROM move_indexes('m', '$to', method => 'copy') WHERE status <> 'moved' AND name "
			. "<> 'm_bloom'"),
		'', "copied to $to");
}

# ---------------------------------------------------------------------------
# Damage
# ---------------------------------------------------------------------------

my %damages;
foreach my $index (grep { $_ !~ $unmeasured } @indexes)
{
	my ($method) = $index =~ /^m_([a-z]+)/;
	my $pages = $node->safe_psql('postgres', "SELECT least(pg_relation_size('$index') / current_setting('block_size')::int - 1, 300)");
	# a sample is without the first block
	my $times = int(2 * $DAMAGES / $pages) + 1;
	my ($rc, $out, $err) = $node->psql('postgres', <<SQL);
SET client_min_messages = debug1;
SET index_mover.test_seed = $seed;
SET index_mover.test_damages = $times;
SELECT bloat_ratio_low <= bloat_ratio_high FROM index_bloat('$index', $pages);
SQL
	is($out, 't', "$index: damaged pages, an error or numbers that can be");
	diag($err =~ s/^DEBUG:.*\n//gmr) if $out ne 't';
	while ($err =~ /damaged pages: (\d+) refused, (\d+) measured/g)
	{
		$damages{$method}[0] += $1;
		$damages{$method}[1] += $2;
	}
}
foreach my $method (qw(btree hash gin gist))
{
	my ($refused, $measured) = @{ $damages{$method} || [ 0, 0 ] };
	note "$method: $refused damaged pages refused, $measured measured";
	cmp_ok($refused + $measured, '>=', $DAMAGES, "$method: many");
	ok($refused > 0 && $measured > 0, "$method: with some there is an error, with some there are numbers");
}

# ---------------------------------------------------------------------------
# What it takes to decide
# ---------------------------------------------------------------------------

# Blocks read by a plan of method auto, and what it says.
sub deciding
{
	my ($index, $settings) = @_;
	my ($rc, $out, $err) = $node->psql('postgres',
		"SET client_min_messages = debug1; $settings SELECT detail FROM move_indexes('$index', 'regress_fast', dry_run => true)");
	my ($blocks) = $err =~ /estimated the bloat of index \d+ from (\d+) blocks/ or die $err;
	return ($blocks, $out);
}

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE large WITH (autovacuum_enabled = off) AS SELECT g AS id, g || repeat('x', 400) AS t FROM generate_series(1, 40000) g;
CREATE INDEX large_t ON large (t) WITH (fillfactor = 10);
-- a sample of 80 blocks of a half would be far off at times
DELETE FROM large WHERE id % 1000 < 700;
VACUUM large;
SQL
cmp_ok($node->safe_psql('postgres', q(SELECT pg_relation_size('large_t') / current_setting('block_size')::int)), '>', 64 * 1024 / 4,
	'a large index')
  if block_size($node) == 8192;
my ($blocks, $said) = deciding('large_t', '');
is($blocks, 80, 'a sample is enough');
like($said, qr/estimated bloat of 0\.[4-9]/, 'and it decides');
# each block takes 100 ms at least: of the 80 of a sample there are ten in a second
($blocks, $said) = deciding('large_t', "SET index_mover.test_point = 'measure:sleep';");
cmp_ok($blocks, '<=', 30, 'slow storage: it reads for a second');
like($said, qr/^Copy; its bloat could not be measured\. Writes /, 'and says so');

# ---------------------------------------------------------------------------
# Numbers that a damaged page has
# ---------------------------------------------------------------------------

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE n (id int, a int[]) WITH (autovacuum_enabled = off);
INSERT INTO n SELECT g, ARRAY[g % 50, g % 1000] FROM generate_series(1, 5000) g;
CREATE INDEX n_gin ON n USING gin (a) WITH (fastupdate = off);
CREATE INDEX n_long ON n USING gin (a) WITH (fastupdate = off);
CREATE INDEX n_hash ON n USING hash (id) TABLESPACE regress_fast;
CREATE INDEX n_brin ON n USING brin (id) WITH (pages_per_range = 1) TABLESPACE regress_fast;
CREATE INDEX n_bloom ON n USING bloom (id) TABLESPACE regress_fast;
-- all pages are looked at
UPDATE pg_class SET relpages = 99999 WHERE relname IN ('n_hash', 'n_brin');
CHECKPOINT;
SQL
my $page_size = block_size($node);
my %files = map { split /\|/ } split /\n/, $node->safe_psql('postgres',
	q(SELECT relname || '|' || pg_relation_filepath(oid) FROM pg_class WHERE relname ~ '^n_'));

# Change the pages of an index by $change, which gets a page and its number.
sub damage_file
{
	my ($name, $change) = @_;
	my $path = $node->data_dir . "/$files{$name}";
	my $file = slurp_file($path);
	for my $block (1 .. length($file) / $page_size - 1)
	{
		my $page = substr($file, $page_size * $block, $page_size);
		$change->(\$page, $block);
		substr($file, $page_size * $block, $page_size) = $page;
	}
	open(my $fh, '>:raw', $path) or die $!;
	print $fh $file;
	close $fh;
	return;
}

# The places of the line pointers of a page of GIN's keys that are in use.
sub gin_items
{
	my ($page) = @_;
	my $flags = unpack('v', substr($$page, $page_size - 2, 2));
	# GIN_LEAF, and not GIN_DATA
	return if ($flags & 3) != 2;
	return map { unpack('V', substr($$page, $_, 4)) & 0x7FFF } map { 24 + 4 * $_ } 0 .. (unpack('v', substr($$page, 12, 2)) - 24) / 4 - 1;
}
$node->stop;
my $lists = 0;
damage_file('n_gin', sub {
	my ($page) = @_;
	foreach my $at (gin_items($page))
	{
		my ($high, $low) = unpack('vv', substr($$page, $at, 4));
		my $list = $at + (($high & 0x7FFF) << 16 | $low);
		# the first row of a compressed list
		next unless $high & 0x8000 && $list < $page_size - 6;
		substr($$page, $list, 6) = "\xFF" x 6;
		$lists++;
	}
});
damage_file('n_long', sub {
	my ($page) = @_;
	return unless gin_items($page);
	# one tuple, above half a page
	my $upper = $page_size / 4;
	substr($$page, 12, 4) = pack('vv', 28, $upper);
	substr($$page, 24, 4) = pack('V', $upper | 1 << 15 | ($page_size - 8 - $upper) << 17);
});
damage_file('n_hash', sub {
	my ($page, $block) = @_;
	return unless $block == 1;
	# LH_META_PAGE, and hashm_maxbucket
	substr($$page, $page_size - 4, 2) = pack('v', 1 << 3);
	substr($$page, 24, 64) = "\xFF" x 64;
});
damage_file('n_brin', sub {
	my ($page, $block) = @_;
	return unless $block == 2;
	# BRIN_PAGETYPE_META, and lastRevmapPage
	substr($$page, $page_size - 2, 2) = pack('v', 0xF091);
	substr($$page, 24, 64) = "\xFF" x 64;
});
$node->start;
cmp_ok($lists, '>', 100, 'lists of rows whose first is damaged');
my $trusting = 'SET ignore_checksum_failure = on; SET client_min_messages = error; ';
is($node->safe_psql('postgres', "$trusting SELECT $sane FROM index_bloat('n_gin')"), 't', 'GIN: a row of block 4294967295');
like(($node->psql('postgres', "$trusting SELECT * FROM index_bloat('n_long')"))[2],
	qr/index "n_long" contains corrupted page at block \d+\n.*: invalid tuple\./,
	'GIN: a tuple of three quarters of a page');
is($node->safe_psql('postgres', "$trusting SELECT object, action FROM index_mover.problems(true) ORDER BY 1"),
	"public.n_brin|block 2 is invalid\npublic.n_hash|block 1 is invalid", 'a metapage that is not the first');
# as of an index of 17 TB
$node->safe_psql('postgres', "UPDATE pg_class SET relpages = -2147483648 WHERE relname = 'n_bloom'");
like($node->safe_psql('postgres', "SELECT action FROM index_mover.problems(true) WHERE object = 'public.n_bloom'"),
	qr/^its file has \d+ pages, and had 2147483648$/, 'a number of pages that is stored as a negative one');
no_finding_ok($node);

$node->stop;
done_testing();
