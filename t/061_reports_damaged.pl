# Damaged pages: a report answers, says NULL, or raises XX001 or XX002; it never
# crashes and always ends.
#
# Each round stops the server, damages every page of every index in the way of
# that round, and asks for samples of two pages at a time, so that thousands of
# damaged pages are looked at (one that raises an error ends its sample).
#
# Fault (storage): damaged pages under the reports, 10,000 and more of each access method, with
#   AddressSanitizer (also 062)
# Fault (security): damaged pages that a report reads (also 062)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_faults();

my $CALLS = 3000;               # samples in each round
my $seed = $ENV{INDEX_MOVER_SEED} || time;
srand($seed);
note "seed $seed";

# With checksums nothing but XX001 would be seen.
my $node = new_node('damaged', conf => "fsync = off\nlog_min_messages = panic\nlog_min_error_statement = panic",
	extra => `pg_config --version` =~ /PostgreSQL (\d+)/ && $1 >= 18 ? ['--no-data-checksums'] : []);

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE d (id int, k int, t text, a int[], p point);
INSERT INTO d SELECT g, g % 300, md5(g::text), ARRAY[g % 50, g % 1000, g], point(g * 7919::bigint % 100003, g * 104729::bigint % 99991)
  FROM generate_series(1, 32000) g;
CREATE UNIQUE INDEX d_btree ON d (id);
CREATE INDEX d_dedup ON d (k);
CREATE INDEX d_text ON d (t);
CREATE INDEX d_hash ON d USING hash (id);
CREATE INDEX d_gin ON d USING gin (a) WITH (gin_pending_list_limit = 65536);
CREATE INDEX d_gist ON d USING gist (p);
CREATE INDEX d_spgist ON d USING spgist (p);
CREATE INDEX d_brin ON d USING brin (t) WITH (pages_per_range = 1);
DELETE FROM d WHERE id BETWEEN 5000 AND 12000;
VACUUM d;
INSERT INTO d SELECT g, g % 300, md5(g::text), ARRAY[g % 50, g % 1000, g], point(g, g) FROM generate_series(32001, 35000) g;
CREATE TABLE result (round text, what text, sqlstate text, n bigint, odd bigint);

CREATE FUNCTION look(round text, calls int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	idx regclass;
	all_of_them regclass[] := (SELECT array_agg(indexrelid) FROM pg_index WHERE indrelid = 'd'::regclass);
	ratio float8; low float8; high float8; density float8;
	state text;
	odd int;
BEGIN
	CREATE TEMP TABLE seen (what text, sqlstate text, odd int) ON COMMIT DROP;
	FOR i IN 1 .. calls LOOP
		idx := all_of_them[1 + i % cardinality(all_of_them)];
		state := 'ok';
		odd := 0;
		BEGIN
			SELECT b.bloat_ratio, b.bloat_ratio_low, b.bloat_ratio_high, b.leaf_density INTO ratio, low, high, density
			  FROM index_bloat(idx, 3) b;
			odd := (NOT coalesce(ratio BETWEEN 0 AND 1 AND low BETWEEN 0 AND ratio AND high BETWEEN ratio AND 1, true)
					OR NOT coalesce(low BETWEEN 0 AND high AND high <= 1, true) OR low = 'NaN' OR high = 'NaN'
					OR ratio = 'NaN' OR NOT coalesce(density BETWEEN 0 AND 1.01, true))::int;
		EXCEPTION WHEN OTHERS THEN
			state := SQLSTATE;
		END;
		INSERT INTO seen VALUES ('bloat', state, odd);
	END LOOP;
	FOREACH idx IN ARRAY all_of_them LOOP
		-- pgstatindex() reads the special space of a page before it looks whether there is
		-- one, which ends a server with assertions
		CONTINUE WHEN idx = 'd_btree'::regclass AND current_setting('debug_assertions')::bool;
		state := 'ok';
		BEGIN
			PERFORM index_bloat(idx, exact => true);
		EXCEPTION WHEN OTHERS THEN
			state := SQLSTATE;
		END;
		INSERT INTO seen VALUES ('exact', state, 0);
	END LOOP;
	state := 'ok';
	BEGIN
		PERFORM gin_pending_list('d_gin');
	EXCEPTION WHEN OTHERS THEN
		state := SQLSTATE;
	END;
	INSERT INTO seen VALUES ('pending', state, 0);
	INSERT INTO result SELECT round, what, s.sqlstate, count(*), sum(s.odd) FROM seen s GROUP BY 1, 2, 3;
END $$;
CHECKPOINT;
SQL

my %files = map { split /\|/ } split /\n/, $node->safe_psql('postgres',
	q(SELECT indexrelid::regclass || '|' || pg_relation_filepath(indexrelid) FROM pg_index WHERE indrelid = 'd'::regclass));
my $data_dir = $node->data_dir;
my $page_size = block_size($node);
$node->stop;
my %good = map { $_ => slurp_file("$data_dir/$files{$_}") } keys %files;

sub put { my ($page, $at, $bytes) = @_; substr($$page, $at, length $bytes) = $bytes; return; }

sub random_bytes { return join '', map { chr(int rand 256) } 1 .. $_[0]; }

# Ways to damage a page.  The header of most stays what the server accepts,
# else its own check would be all that is tested.
my %ways = (
	'flipped bits' => sub {
		my ($page) = @_;
		for (1 .. 1 + int rand 16)
		{
			my $at = 24 + int rand($page_size - 24);
			put($page, $at, chr(ord(substr($$page, $at, 1)) ^ (1 << int rand 8)));
		}
	},
	'line pointers' => sub {
		my ($page) = @_;
		my $n = (unpack('v', substr($$page, 12, 2)) - 24) / 4;
		put($page, 24 + 4 * int rand($n), random_bytes(4)) for 1 .. ($n >= 1 ? 8 : 0);
	},
	'special space' => sub {
		my ($page) = @_;
		put($page, $page_size - 16 + int rand 16, random_bytes(1)) for 1 .. 3;
	},
	'offsets of the header' => sub {
		my ($page) = @_;
		my ($lower, $upper, $special) = sort { $a <=> $b } map { int rand($page_size + 1) } 1 .. 3;
		$special = $special & ~7;
		$upper = $special if $upper > $special;
		$lower = $upper if $lower > $upper;
		put($page, 12, pack('v3', rand() < 0.5 ? $lower : 24 + int rand(40), $upper, rand() < 0.5 ? $special : $page_size - 16));
	},
	'random contents' => sub {
		my ($page) = @_;
		put($page, 24, random_bytes($page_size - 24 - 16));
	},
	'tuple headers' => sub {
		my ($page) = @_;
		my $upper = unpack('v', substr($$page, 14, 2));
		return if $upper >= $page_size - 32 || $upper < 24;
		put($page, $upper + 8 * int(rand(($page_size - 16 - $upper) / 8)), random_bytes(8)) for 1 .. 12;
	},
	'pages of others' => sub {
		my ($page) = @_;
		my @names = sort keys %good;
		my $other = $good{ $names[ rand @names ] };
		$$page = substr($other, $page_size * int rand(length($other) / $page_size), $page_size);
	},
	'zeros and torn pages' => sub {
		my ($page) = @_;
		my $half = 512 * (1 + int rand($page_size / 512 - 1));
		$$page = rand() < 0.3 ? "\0" x $page_size : substr($$page, 0, $half) . "\0" x ($page_size - $half);
	});

my $damaged = 0;
for my $way (sort keys %ways)
{
	for my $name (sort keys %files)
	{
		my $file = $good{$name};
		# the metapage is damaged in some indexes only: else nothing else is read
		for my $block (0 .. length($file) / $page_size - 1)
		{
			next if $block == 0 && $name !~ /^d_(gin|gist|hash)$/;
			next if $block == 0 && rand() < 0.5;
			my $page = substr($file, $page_size * $block, $page_size);
			$ways{$way}->(\$page);
			substr($file, $page_size * $block, $page_size) = $page;
			$damaged++;
		}
		open(my $fh, '>:raw', "$data_dir/$files{$name}") or die $!;
		print $fh $file;
		close $fh;
	}
	$node->start;
	my ($rc, $out, $err) = $node->psql('postgres', "SET statement_timeout = '600s'; SELECT look('$way', $CALLS)");
	is($rc, 0, "$way: the server answers") or diag $err;
	my $bad = $node->safe_psql('postgres',
		"SELECT what, sqlstate, n, odd FROM result WHERE round = '$way' AND (sqlstate NOT IN ('ok', 'XX001', 'XX002') OR odd > 0)");
	is($bad, '', "$way: XX001, XX002 or a sane answer");
	note $node->safe_psql('postgres', "SELECT string_agg(format('%s %s %s', what, sqlstate, n), ', ') FROM result WHERE round = '$way'");
	my $rows = $node->safe_psql('postgres', q(SET statement_timeout = '600s'; SELECT count(*) FROM index_report('d')));
	is($rows, 9, "$way: index_report has a row for every index, and the table");
	$node->stop;
}
note has_sanitizer() ? 'with AddressSanitizer' : 'without AddressSanitizer';
no_finding_ok($node);
cmp_ok($damaged, '>', $page_size <= 8192 ? 10000 : 10000 * 8192 / $page_size, 'ten thousand damaged pages');

# Reports of an impossible metapage.
my %damage = (
	# one pending page more than there can be
	d_gin => [ sub { put($_[0], 24 + 12, pack('L', length(${ $_[0] }) / $page_size)) }, 'gin_pending_list',
		qr/ERROR:  XX002: index "d_gin" contains corrupted page at block 0\n/ ],
	d_hash => [ sub { put($_[0], 24, "\0" x 16) }, 'index_bloat',
		qr/ERROR:  XX002: index "d_hash" contains corrupted page at block 0\nDETAIL:  The page cannot be read: invalid metapage\.\n/ ],
	d_btree => [ sub { put($_[0], 24, "\0" x 4) }, 'index_bloat',
		qr/ERROR:  XX002: index "d_btree" contains corrupted page at block 0\nDETAIL:  The page cannot be read: invalid metapage\.\n/ ]);

sub write_file
{
	my ($name, $file) = @_;
	open(my $fh, '>:raw', "$data_dir/$files{$name}") or die $!;
	print $fh $file;
	close $fh;
	return;
}

sub refused_ok
{
	my ($name, $function, $message) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "SELECT * FROM $function('$name')", extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return like($err, $message, "$name: $function");
}

foreach my $name (sort keys %files)
{
	my $file = $good{$name};
	$damage{$name}[0]->(\$file) if $damage{$name};
	write_file($name, $file);
}
$node->start;
refused_ok($_, @{ $damage{$_} }[ 1, 2 ]) foreach sort keys %damage;
$node->stop;
write_file('d_gin', '');
$node->start;
refused_ok('d_gin', 'gin_pending_list', qr/ERROR:  XX001: could not read blocks? 0/);
$node->stop;
# a file that ends after the metapage, or before the pages that a vacuum has counted
my @cut = qw(d_btree d_gin d_hash);
write_file($_, substr($good{$_}, 0, $page_size)) foreach @cut;
$node->start;
foreach my $function (qw(index_bloat gin_pending_list))
{
	refused_ok($_, $function,
		qr/XX002: index "$_" contains corrupted page at block 0\nDETAIL:  The page cannot be read: invalid metapage\.\n/)
		foreach $function eq 'index_bloat' ? @cut : 'd_gin';
}
$node->stop;
write_file('d_gin', substr($good{d_gin}, 0, 2 * $page_size));
$node->start;
refused_ok('d_gin', 'gin_pending_list', qr/ERROR:  XX002: index "d_gin" contains corrupted page at block 0\n/);
is($node->safe_psql('postgres', 'SELECT count(*) FROM index_report(\'d\')'), 9, 'index_report has a row for every index, and the table');
$node->stop;

done_testing();
