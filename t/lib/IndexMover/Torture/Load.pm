# IndexMover::Torture::Load
#   The writers of the random test: what each transaction does, the process that
#   runs them, and their replay on a twin.
#
# Transaction number n of client c is a function of (seed, c, n) and of nothing
# else, whatever happened to the ones before.  It begins by putting (c, n) into
# the table torture_log, so after any crash that table is the list of what was
# committed, in each client's order.  Clients write to disjoint ranges of keys,
# so the order between clients does not matter.  Running the same transactions on
# tables that were never moved, never crashed, must give the same rows.
package IndexMover::Torture::Load;

use strict;
use warnings;

use Exporter 'import';
use IPC::Open3 qw(open3);
use POSIX ();
use Time::HiRes qw(time usleep);

our @EXPORT_OK = qw(make_tables transaction run_client write_replay @TABLES);

# What is moved: table => columns that are compared with the twin.
our @TABLES = (
	[ 'zoo', 'id, grp, txt, num, pt::text, rng, arr, doc, js, maybe' ],
	[ 'parts', 'id, part, txt, tags' ],
	[ 'wide', 'id, md5(body), length(body), during' ]);

# Keys of client c are c * 100000 + 1 .. KEYS.
use constant KEYS => 600;

# The tables besides the zoo.  A partitioned one, one with TOAST and an exclusion
# constraint, an unlogged one (a crash empties it, so it has no twin), and one
# that others rewrite, truncate and cluster.
sub make_tables
{
	return <<SQL;
SET client_min_messages = warning;
SET default_tablespace = regress_slow;
CREATE TABLE torture_log (client int, n int, PRIMARY KEY (client, n) USING INDEX TABLESPACE pg_default) TABLESPACE pg_default;
CREATE INDEX zoo_other ON zoo (grp, id);
CREATE TABLE parts (id int, part int, txt text, tags int[], PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES IN (0);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1) WITH (fillfactor = 50);
CREATE INDEX parts_txt ON parts (txt);
CREATE INDEX parts_tags ON parts USING gin (tags);
CREATE TABLE wide (id int PRIMARY KEY, body text, during int4range,
	EXCLUDE USING gist (id WITH =, during WITH &&));
ALTER TABLE wide ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX wide_md5 ON wide (md5(body)) INCLUDE (id);
CREATE UNLOGGED TABLE forgetful (id int PRIMARY KEY, txt text);
CREATE INDEX forgetful_txt ON forgetful (txt);
CREATE TABLE side (id int PRIMARY KEY, txt text);
CREATE INDEX side_txt ON side (txt);
ALTER TABLE side CLUSTER ON side_pkey;
INSERT INTO side SELECT g, md5(g::text) FROM generate_series(1, 3000) g;
SQL
}

# A row of table zoo for key $id with value $v.
sub zoo_row
{
	my ($id, $v) = @_;
	my $maybe = $v % 3 ? 'NULL' : $v % 50;
	return sprintf(
		"%d, %d, 'text %d', %d, point(%d, %d), int4range(%d, %d), ARRAY[%d, %d], to_tsvector('simple', 'w%d x%d'), "
			. "jsonb_build_object('k', %d), %s",
		$id, $v % 97, $v % 1009, $id, $v % 71, $v % 53, $v, $v + 10, $v % 31, $v % 7,
		$v % 211, $v % 11, $v % 101, $maybe);
}

# One change, as SQL.
sub change
{
	my ($id, $v) = @_;
	my $what = int(rand(17));
	my $part = $id % 2;
	my $to = $id + 5;
	return "DELETE FROM zoo WHERE id = $id; INSERT INTO zoo VALUES (" . zoo_row($id, $v) . ')'
	  if $what < 3;
	return 'INSERT INTO zoo VALUES (' . zoo_row($id, $v)
		. ') ON CONFLICT (id) DO UPDATE SET grp = EXCLUDED.grp, txt = EXCLUDED.txt, doc = EXCLUDED.doc'
	  if $what == 3;
	return "UPDATE zoo SET rng = rng WHERE id BETWEEN $id AND $to" if $what == 4;
	return "UPDATE zoo SET grp = $v % 97, txt = 'changed $v', pt = point($v % 71, $v), arr = ARRAY[$v % 31], doc = to_tsvector('simple', "
		. "'c$v'), js = jsonb_build_object('k', $v % 101), maybe = $v % 50 WHERE id = $id"
	  if $what < 7;
	return "UPDATE zoo SET num = -num WHERE id BETWEEN $id AND $to" if $what == 7;
	return "DELETE FROM zoo WHERE id BETWEEN $id AND $to" if $what == 8;
	return "INSERT INTO parts VALUES ($id, $part, md5('$v'), ARRAY[$v % 17, $v % 5]) ON CONFLICT (id, part) DO UPDATE SET txt = "
		. "EXCLUDED.txt, tags = EXCLUDED.tags"
	  if $what < 11;
	return "DELETE FROM parts WHERE id BETWEEN $id AND $to" if $what == 11;
	return "UPDATE parts SET tags = tags || $v % 13, txt = txt WHERE id = $id AND cardinality(tags) < 8"
	  if $what == 12;
	return "INSERT INTO wide VALUES ($id, repeat(md5('$v'), 90), int4range($v, $v + 5)) ON CONFLICT (id) DO UPDATE SET body = "
		. "EXCLUDED.body, during = EXCLUDED.during"
	  if $what == 13;
	return "DELETE FROM wide WHERE id = $id; INSERT INTO wide VALUES ($id, repeat('$v', 40), int4range($v, $v + 5))"
	  if $what == 14;
	return "INSERT INTO forgetful VALUES ($id, md5('$v')) ON CONFLICT (id) DO UPDATE SET txt = EXCLUDED.txt"
	  if $what == 15;
	return "INSERT INTO zoo SELECT " . zoo_row(0, $v) . " WHERE false; SELECT 1 FROM zoo WHERE id BETWEEN $id AND $to FOR KEY SHARE";
}

# Transaction n of client c: { kind, text, finish => 'COMMIT' or 'ROLLBACK',
# prepared => its name, linger => seconds }.  The text has no BEGIN and no end.
sub transaction
{
	my ($seed, $client, $n) = @_;
	srand(($seed * 1009 + $client) * 100_003 + $n);
	rand() for 1 .. 3;
	my $t = { finish => 'COMMIT', linger => 0 };
	my $kind = rand();
	my $some = sub {
		return join(";\n",
			map { change($client * 100_000 + 1 + int(rand(KEYS)), int(rand(100_000))) } 1 .. $_[0]);
	};

	my $text = "INSERT INTO torture_log VALUES ($client, $n);\n";
	if ($kind < 0.5)
	{
		$t->{kind} = 'changes';
		$text .= $some->(1 + int(rand(4)));
	}
	elsif ($kind < 0.65)
	{
		$t->{kind} = 'savepoints';
		$text .= "SAVEPOINT a;\n" . $some->(2) . ";\nROLLBACK TO a;\n" . $some->(1)
		  . ";\nSAVEPOINT b;\n" . $some->(2) . ";\nRELEASE b";
	}
	elsif ($kind < 0.72)
	{
		$t->{kind} = 'many subtransactions';
		$text .= join(";\n", map { ("SAVEPOINT s$_", $some->(1)) } 1 .. 20);
	}
	elsif ($kind < 0.80)
	{
		$t->{kind} = 'rolled back';
		$text .= $some->(3);
		$t->{finish} = 'ROLLBACK';
	}
	elsif ($kind < 0.88)
	{
		$t->{kind} = 'prepared';
		$text .= $some->(2);
		$t->{prepared} = "torture_${client}_$n";
		$t->{finish} = 'ROLLBACK' if rand() < 0.25;
		$t->{linger} = rand() < 0.1 ? 1.5 : rand(0.1);
	}
	else
	{
		$t->{kind} = 'bulk';
		my $first = $client * 100_000 + 1 + int(rand(KEYS - 60));
		my $last = $first + 50;
		my $v = int(rand(100_000));
		$text .= rand() < 0.5
		  ? "UPDATE zoo SET txt = 'bulk ' || (id + $v) % 1009, maybe = (id + $v) % 50, arr = ARRAY[(id + $v) % 31, id % 7] WHERE id "
		  	. "BETWEEN $first AND $last"
		  : "DELETE FROM parts WHERE id BETWEEN $first AND $last;\n"
		  . "INSERT INTO parts SELECT g, g % 2, md5((g + $v)::text), ARRAY[g % 17, $v % 5] FROM generate_series($first, $last) g";
	}
	$t->{text} = $text;
	return $t;
}

# A read that must give the same by index and by scan, in one snapshot: a
# difference is a division by zero.
sub comparison
{
	my ($column, $value) = @{ ([ 'grp', int(rand(97)) ], [ 'upper(txt)', "'TEXT " . int(rand(1009)) . "'" ],
			[ 'maybe', int(rand(50)) ])[ int(rand(3)) ] };
	return <<SQL;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL enable_seqscan = off;
SELECT count(*) AS by_index FROM zoo WHERE $column = $value \\gset
SET LOCAL enable_seqscan = on;
SET LOCAL enable_indexscan = off;
SET LOCAL enable_indexonlyscan = off;
SET LOCAL enable_bitmapscan = off;
SELECT 1 / (count(*) = :by_index)::int FROM zoo WHERE $column = $value;
COMMIT;
SQL
}

# ---------------------------------------------------------------------------
# The process of a client
# ---------------------------------------------------------------------------

# A psql that is talked to through pipes; undef when there is no connection.
sub connect_psql
{
	my ($connstr) = @_;
	my $s = { out => '' };
	$s->{pid} = open3($s->{in}, $s->{from}, undef, 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $connstr);
	$s->{in}->autoflush(1);
	my $backend = ask($s, 'SELECT pg_backend_pid()');
	return undef unless defined $backend && $backend =~ /^(\d+)$/m;
	$s->{backend} = $1;
	return $s;
}

# Run commands and return all that they say; undef when the connection is gone.
sub ask
{
	my ($s, $sql) = @_;
	local $SIG{PIPE} = 'IGNORE';
	my $out = '';
	if (print { $s->{in} } "$sql;\n\\echo ===\n")
	{
		while (defined(my $line = readline($s->{from})))
		{
			return $out if $line eq "===\n";
			$out .= $line;
		}
	}
	close $s->{in};
	close $s->{from};
	waitpid($s->{pid}, 0);
	return undef;
}

# Run transactions from number $first on until the file $stop exists.  Writes
# into $report: the number of the next one, "error SQLSTATE number" lines and
# "done kind number" lines.
sub run_client
{
	my (%o) = @_;
	my ($n, $s, $old, %errors, %done) = ($o{first}, undef, 0);
	# decisions that have nothing to do with the contents
	my $own = $o{seed} * 31 + $o{client};
	until (-e $o{stop})
	{
		unless ($s)
		{
			$s = connect_psql($o{connstr});
			usleep(100_000), next unless $s;
			# the last one may not have noticed yet that its client is gone
			my $busy = ask($s, "SELECT 'busy' FROM pg_stat_activity WHERE pid = $old AND pid <> pg_backend_pid()");
			while (defined $busy && $busy =~ /busy/)
			{
				usleep(20_000);
				$busy = ask($s, "SELECT 'busy' FROM pg_stat_activity WHERE pid = $old AND pid <> pg_backend_pid()");
			}
			$s = undef, next unless defined $busy;
			$old = $s->{backend};
			# what was prepared before the connection was lost
			my $left = ask($s, "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'torture\\_$o{client}\\_%'");
			$s = undef, next unless defined $left;
			foreach my $gid ($left =~ /^torture_\d+_\d+$/mg)
			{
				my ($number) = $gid =~ /(\d+)$/;
				my $t = transaction($o{seed}, $o{client}, $number);
				$s = undef, last unless defined ask($s, "$t->{finish} PREPARED '$gid'");
			}
			next unless $s;
		}
		my $t = transaction($o{seed}, $o{client}, $n);
		$n++;
		my $answer = ask($s, "BEGIN;\n$t->{text};\n"
			. ($t->{prepared} ? "PREPARE TRANSACTION '$t->{prepared}'" : $t->{finish}));
		if (defined $answer && $t->{prepared} && $answer !~ /ERROR/)
		{
			usleep(1_000_000 * $t->{linger});
			my $end = ask($s, "$t->{finish} PREPARED '$t->{prepared}'");
			# an unfinished one is finished after the next connect
			$answer = defined $end ? "$answer$end" : undef;
			if (defined $end && $end =~ /ERROR/)
			{
				ask($s, "SELECT pg_terminate_backend(pg_backend_pid())");
				$s = undef;
			}
		}
		$done{ $t->{kind} }++;
		if (defined $answer && $n % 12 == 0)
		{
			srand($own + $n);
			my $compared = ask($s, comparison());
			$answer = defined $compared ? "$answer$compared" : undef;
			$done{'index compared with scan'}++ if defined $compared;
			$answer .= ask($s, 'ROLLBACK') // '' if defined $answer;
		}
		$errors{$1}++ while defined $answer && $answer =~ /^(?:psql:\S+ )?(?:ERROR|FATAL):\s+(?!25P02)(\w{5}: [^\n]*)/mg;
		$s = undef unless defined $answer;
		usleep(int(1_000_000 * rand(2 * $o{pause})));
	}
	open(my $fh, '>', $o{report}) or die "$o{report}: $!";
	print $fh "next $n\n";
	print $fh "done $done{$_} $_\n" for sort keys %done;
	print $fh "error $errors{$_} $_\n" for sort keys %errors;
	close $fh;
	return;
}

# Write a file for psql that does again what torture_log says, which is a list of
# [client, number].
sub write_replay
{
	my ($file, $seed, $log) = @_;
	open(my $fh, '>', $file) or die "$file: $!";
	print $fh "SET synchronous_commit = off;\n";
	foreach my $entry (@$log)
	{
		my $t = transaction($seed, @$entry);
		print $fh "BEGIN;\n$t->{text};\nCOMMIT;\n";
	}
	close $fh;
	return;
}

1;
