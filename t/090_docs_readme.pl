# The documentation's examples work: every ```sql block of README.md and of
# docs/*.md is run as it stands there, file by file, each file in one psql
# session and on a database of its own.
#
# A block that cannot be run here is written as ```text or ```console instead.
# After <!-- error 12345 --> in the line before, the block must end in an error
# with this SQLSTATE; after <!-- no rows --> it must return nothing.  Directories
# (LOCATION '/..') are replaced by ones that exist.  What is scheduled with
# pg_cron goes to a table in its place, and is run at the end.
#
# The statements of transcripts, which are blocks of ```text with the prompt =>,
# are run, too, and must return the columns that the transcript shows; so are
# statements in the text that begin with SELECT and have nothing left out (..).
# With the settings of psql that README.md itself makes, its results fit into 100
# columns, and those of the other pages into 120.  Of commands (```console) that are
# ours it is looked whether they and their options and arguments exist.
#
# And every function, view, column and setting is in docs/reference.md, and every error
# and warning that has no hint, unless it says itself what is wrong with an argument:
# functions, views and settings have a section of their name, messages are `code`, with
# ... for what is filled in.  Links lead to what is there.
#
# scripts/smoke, and with it what all scripts take from scripts/lib.sh, works whatever
# the PG* variables of the environment and its locale say.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/..";
my @files = ("$top/README.md", sort glob("$top/docs/*.md"));
# as a user's server is
my $node = new_node('readme', extension => 0, verify => 0);
my $database = 0;

# The ```sql blocks of a text: [line number, mark or '', statements]
sub blocks_of
{
	my ($text) = @_;
	my (@blocks, $current);
	my ($mark, $number) = ('', 0);
	foreach my $line (split /\n/, $text)
	{
		$number++;
		if ($current)
		{
			if ($line =~ /^\s*```\s*$/) { push @blocks, $current; undef $current; }
			else { $current->[2] .= "$line\n"; }
		}
		elsif ($line =~ /^\s*```sql\s*$/)
		{
			$current = [ $number, $mark, '' ];
			$mark = '';
		}
		elsif ($line =~ /^<!-- (error \w{5}|no rows) -->$/) { $mark = $1; }
		elsif ($line =~ /\S/) { $mark = ''; }
	}
	die "block without end at line $current->[0]" if $current;
	return @blocks;
}

# The columns of a result as psql has printed it, aligned or expanded.
sub columns_of
{
	my (@lines) = @_;
	return '' if !@lines;
	return join '|', map { s/^ +| +$//gr } split /\|/, $lines[0] if @lines > 1 && $lines[1] =~ /^-+(\+-+)*$/;
	return join '|', map { /^(\w+) +\|/ ? $1 : () } @lines;
}

# The statements of the transcripts in a text: [line number, statement, columns]
sub transcripts_of
{
	my ($text) = @_;
	my (@statements, @shown);
	my ($in, $number, $begun, $prompts) = ('', 0, 0, 0);
	my $end = sub {
		$statements[-1][2] = columns_of(@shown) if @shown;
		@shown = ();
	};
	foreach my $line (split /\n/, $text)
	{
		$number++;
		if ($line =~ /^\s*```(\w*)\s*$/)
		{
			$end->();
			$in = $in ? '' : ($1 || 'none');
			$begun = $prompts = 0;
		}
		elsif ($in eq 'text' && $line =~ /^=> (.*)/)
		{
			$end->();
			$prompts = 1;
			push @statements, [ $number, "$1\n", '' ];
			$begun = $1 !~ /;\s*$/;
		}
		elsif ($begun)
		{
			$statements[-1][1] .= "$line\n";
			$begun = $line !~ /;\s*$/;
		}
		elsif ($prompts) { push @shown, $line; }
	}
	return @statements;
}

# Statements within the text: [line number, statement]
sub inline_of
{
	my ($text) = @_;
	my @statements;
	$text =~ s{^```.*?^```$}{"\n" x ($& =~ tr/\n//)}gems;
	while ($text =~ /`(SELECT [^`]+)`/g)
	{
		my $statement = $1;
		push @statements, [ 1 + (substr($text, 0, $-[0]) =~ tr/\n//), $statement ] if $statement !~ /\.\./;
	}
	return @statements;
}

# What the examples take for granted.
sub make_database
{
	my ($has_extension) = @_;
	my $name = 'readme' . ++$database;
	$node->safe_psql('postgres', "CREATE DATABASE $name");
	my $have = $node->safe_psql('postgres', 'SELECT spcname FROM pg_tablespace');
	foreach my $tablespace ('slow_storage', 'fast_storage')
	{
		# README.md makes one of them itself
		next if $have =~ /^$tablespace$/m || ($tablespace eq 'fast_storage' && !$has_extension);
		my $dir = PostgreSQL::Test::Utils::tempdir();
		$node->safe_psql('postgres', "CREATE TABLESPACE $tablespace LOCATION '$dir'");
	}
	$node->safe_psql($name, 'CREATE EXTENSION index_mover CASCADE') if $has_extension;
	$node->safe_psql($name, <<SQL);
CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int) WITH (fillfactor = 100);
CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
INSERT INTO pgbench_branches SELECT g, 0 FROM generate_series(1, 10) g;
INSERT INTO pgbench_accounts SELECT g, g / 1000, 0, '' FROM generate_series(1, 10000) g;
CREATE INDEX accounts_bid ON pgbench_accounts (bid) TABLESPACE slow_storage;
CREATE TABLE documents (id int PRIMARY KEY, words tsvector);
CREATE INDEX documents_words ON documents USING gin (words);
INSERT INTO documents SELECT g, to_tsvector('simple', 'a' || g) FROM generate_series(1, 1000) g;
CREATE TABLE orders (id int PRIMARY KEY, customer int, placed timestamptz, note text, tags int[]);
CREATE INDEX orders_customer ON orders (customer);
CREATE INDEX orders_note ON orders (note);
CREATE INDEX orders_placed ON orders (placed);
CREATE INDEX orders_placed_2 ON orders (placed);
CREATE INDEX orders_tags ON orders USING gin (tags);
INSERT INTO orders SELECT g, g % 100, now(), 'note ' || g, ARRAY[g, g % 10] FROM generate_series(1, 1000) g;
VACUUM ANALYZE;
CREATE SCHEMA cron;
CREATE TABLE cron.stand_in (command text);
CREATE FUNCTION cron.schedule(name text, schedule text, command text) RETURNS bigint LANGUAGE sql
	AS 'INSERT INTO cron.stand_in VALUES (command) RETURNING 1::bigint';
SQL
	return $name;
}

foreach my $file (@files)
{
	my ($name) = $file =~ m{([^/]+)$};
	my $text = slurp_file($file);
	my @blocks = blocks_of($text);
	next if !@blocks && !transcripts_of($text) && !inline_of($text);
	# the reader prepares these, wherever they stand in the text
	@blocks = ((grep { $_->[2] =~ /^CREATE (EXTENSION|TABLESPACE)/ } @blocks),
		(grep { $_->[2] !~ /^CREATE (EXTENSION|TABLESPACE)/ } @blocks));

	# The pages other than the README begin where the README ends.
	my $db = make_database($name ne 'README.md');

	my @transcripts = transcripts_of($text);
	my @inline = inline_of($text);

	# One session, so that psql's variables live on from block to block.
	my $width = $name eq 'README.md' ? 100 : 120;
	my $script = "\\set VERBOSITY verbose\n\\pset pager off\n\\pset tuples_only off\n\\pset columns $width\n\\pset format aligned\n";
	$script .= "\\x auto\n\\pset format wrapped\n" if $name ne 'README.md';
	foreach my $block (@blocks, @inline)
	{
		my $sql = $block->[-1];
		$sql =~ s{LOCATION '/[^']*'}{"LOCATION '" . PostgreSQL::Test::Utils::tempdir() . "'"}ge;
		$script .= "\\warn == $block->[0]\n\\echo == $block->[0]\n$sql\n;\n";
	}
	$script .= "\\pset format unaligned\n\\pset expanded off\n";
	$script .= "\\warn == $_->[0]\n\\echo == $_->[0]\n$_->[1]" foreach @transcripts;
	my ($out, $err);
	$node->psql($db, $script, stdout => \$out, stderr => \$err, on_error_stop => 0);
	my (%errors, %printed);
	my $line = 0;
	foreach (split /\n/, $err)
	{
		if (/^== (\d+)/) { $line = $1; }
		elsif (/(?:ERROR|FATAL):\s+([0-9A-Z]{5}):/) { push @{ $errors{$line} }, $_; }
		elsif (/invalid command|unrecognized|syntax error/) { push @{ $errors{$line} }, $_; }
	}
	foreach (split /\n/, $out)
	{
		if (/^== (\d+)/) { $line = $1; }
		else { push @{ $printed{$line} }, $_; }
	}
	foreach my $block (@blocks, (map { [ $_->[0], '' ] } @inline, @transcripts))
	{
		my ($number, $mark) = @$block;
		my $found = join "\n", @{ $errors{$number} || [] };
		if ($mark =~ /^error (\w+)/) { like($found, qr/$1/, "$name, line $number: $mark"); }
		else { is($found, '', "$name, line $number: no error"); }
		if ($mark eq 'no rows')
		{
			is(join("\n", grep { /^\(\d+ rows?\)$/ } @{ $printed{$number} || [] }), '(0 rows)', "$name, line $number: no rows");
		}
	}
	is(join("\n", grep { length($_) > $width } map { @{ $printed{ $_->[0] } || [] } } @blocks, @inline), '',
		"$name: the results are at most $width columns wide");
	foreach my $transcript (@transcripts)
	{
		my ($number, undef, $columns) = @$transcript;
		is(($printed{$number} || [''])->[0], $columns, "$name, line $number: the columns are those shown");
	}

	# what was scheduled, as pg_cron runs it: one statement a transaction
	foreach my $id (split /\n/, $node->safe_psql($db, 'SELECT ctid FROM cron.stand_in'))
	{
		my $command = $node->safe_psql($db, "SELECT command FROM cron.stand_in WHERE ctid = '$id'");
		my $status = $node->psql($db, $command, stderr => \$err);
		my $expected = 0;
		if ($command =~ /AS all_is_well FROM index_mover_check\(\)/)
		{
			# an error is how this one reports what the check has found here
			$expected = 3 if $node->safe_psql($db, 'SELECT count(*) FROM index_mover_check()') > 0;
		}
		is($status, $expected, "$name: scheduled: $command") or diag($err);
	}
	$node->psql($db, 'SELECT cancel_move()');
	wait_for_no_worker($node, dbname => $db);
}

# ---- columns -----------------------------------------------------------------
# Everything that a user gets has its columns in a table of its page.
my $db = make_database(1);
my $reference = slurp_file("$top/docs/reference.md");
foreach my $line (split /\n/, $node->safe_psql($db, <<'SQL'))
SELECT p.proname, string_agg(a.name, ' ' ORDER BY a.n)
  FROM pg_depend d
  JOIN pg_proc p ON p.oid = d.objid
 CROSS JOIN LATERAL unnest(p.proargnames, p.proargmodes) WITH ORDINALITY a(name, mode, n)
 WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'index_mover')
   AND a.mode IN ('o', 'b', 't') AND p.pronamespace <> 'index_mover'::regnamespace AND p.proname <> 'index_mover_cleanup'
 GROUP BY p.oid, p.proname
UNION ALL
SELECT c.relname, string_agg(a.attname, ' ' ORDER BY a.attnum)
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.relname IN ('move_result', 'index_mover_jobs', 'index_mover_progress', 'index_mover_history')
 GROUP BY c.oid, c.relname
SQL
{
	my ($name, $columns) = split /\|/, $line;
	my ($section) = $reference =~ /^### $name\n(.*?)(?=^##+ |\z)/ms;
	my $described = join ' ', map { /^\| ([^|]*) \|/ ? $1 : () } split /\n/, $section // '';
	is(join(' ', grep { $described !~ /`$_`/ } split / /, $columns), '', "the columns of $name are described");
}

# Everything else that a user calls or sets has a section, too.
my %sections;
foreach my $name (split /\n/, $node->safe_psql($db, <<'SQL'))
LOAD 'index_mover';
SELECT DISTINCT '### ' || coalesce(p.proname, c.relname)
  FROM pg_depend d
  LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid AND p.pronamespace <> 'index_mover'::regnamespace
  LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relnamespace <> 'index_mover'::regnamespace
 WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'index_mover')
   AND coalesce(p.oid, c.oid) IS NOT NULL
UNION ALL
SELECT '#### ' || name FROM pg_settings WHERE name LIKE 'index\_mover.%' AND name NOT LIKE '%.test\_%'
SQL
{
	like($reference, qr/^\Q$name\E$/m, "there is a section \"$name\"");
	$sections{$name} = 1;
}
is(join(' ', grep { !$sections{"#### $_"} } $reference =~ /^#### (index_mover\.\w+)$/gm), '', 'no other setting has one');

$node->stop;

# ---- links -------------------------------------------------------------------
# to files that are there, and to headings and anchors of these
sub anchors_of
{
	my ($text) = @_;
	my (%anchors, %seen);
	$text =~ s{^```.*?^```$}{}gms;
	$anchors{$1} = 1 while $text =~ /<a id="([^"]+)"/g;
	while ($text =~ /^#+ +(.*?)\s*$/gm)
	{
		my $anchor = lc $1 =~ s/\[([^]]*)\]\([^)]*\)/$1/gr;
		$anchor =~ s/[^\w\- ]//g;
		$anchor =~ tr/ /-/;
		$anchors{ $anchor . ($seen{$anchor}++ ? '-' . ($seen{$anchor} - 1) : '') } = 1;
	}
	return \%anchors;
}
foreach my $file (@files, "$top/CONTRIBUTING.md", "$top/t/FAULTS.md")
{
	my ($name) = $file =~ m{([^/]+)$};
	(my $dir = $file) =~ s{/[^/]+$}{};
	my $text = slurp_file($file) =~ s{^```.*?^```$}{}gmsr;
	my @broken;
	while ($text =~ /\]\(\s*([^)\s]+)\s*\)/g)
	{
		my ($link, $path, $anchor) = ($1, split(/#/, $1, 2));
		next if $link =~ /^\w+:/;
		my $target = $path eq '' ? $file : "$dir/$path";
		push @broken, $link
		  if !-e $target || defined $anchor && $target =~ /\.md$/ && !anchors_of(slurp_file($target))->{$anchor};
	}
	is(join("\n", @broken), '', "$name: its links lead somewhere");
}

# ---- commands ----------------------------------------------------------------
my $commands = 0;
foreach my $file (@files, "$top/CONTRIBUTING.md")
{
	my ($name) = $file =~ m{([^/]+)$};
	foreach my $line (map { split /\n/ } slurp_file($file) =~ /^```console\n(.*?)^```$/gms)
	{
		my ($command, @words) = split ' ', $line =~ s/^\$ +//r =~ s/\s+# .*//r;
		if ($command eq 'make' && grep { $_ eq 'dist' } @words)
		{
			like(slurp_file("$top/Makefile"), qr/^dist:/m, "$name: $line");
		}
		next if $command !~ m{^(?:scripts|bench)/};
		$commands++;
		ok(-x "$top/$command", "$name: there is $command") || next;
		# what it reads and what it hands its arguments on to
		my $help = join "\n", map { slurp_file("$top/$_") } $command, 'bench/lib.sh',
			$command eq 'scripts/test-builds' ? 'scripts/test' : (),
			(grep { $_ eq '--all-versions' } @words) ? 'scripts/test-versions' : ();
		my @unknown;
		foreach my $word (map { split /,/ } map { tr/'//dr } @words)
		{
			next if $help =~ /(?<![\w-])\Q$word\E(?![\w-])/;
			my @tests = glob("$top/sql/$word.sql $top/t/$word*.pl");
			push @unknown, $word unless $word =~ /^(?:--|[1-9]\d*)$/ || grep { -f } @tests;
		}
		is("@unknown", '', "$name: what is said to $command in \"$line\"");
	}
}
cmp_ok($commands, '>=', 15, 'commands are looked at');

# ---- messages ---------------------------------------------------------------
my @known;
foreach my $span ($reference =~ /`([^`\n]{12,})`/g)
{
	my $pattern = join '.*', map { quotemeta } split /\.\.+/, $span, -1;
	push @known, qr/^$pattern/ if $pattern =~ /\w.*\w/;
}
cmp_ok(scalar(@known), '>', 80, 'messages are described');
foreach my $file ("$top/README.md", "$top/docs/reference.md")
{
	my ($name) = $file =~ m{([^/]+)$};
	my @helpless = map { grep { /\|\s*\|\s*$/ } split /\n/ } slurp_file($file) =~ /^\|[^\n]*\| what to do \|\n((?:\|[^\n]*\n)+)/gm;
	is(join("\n", @helpless), '', "$name says what to do about each message");
}
# an ERROR of a call that has named something that is not there, or that does not fit; what a
# move says afterwards, in a row or a log, is no answer to an argument
my $argument = qr/(?:NULL_VALUE_NOT_ALLOWED|INVALID_PARAMETER_VALUE|WRONG_OBJECT_TYPE|UNDEFINED_(?:OBJECT|TABLE|SCHEMA)
	|E_R_I_E_TRIGGER_PROTOCOL_VIOLATED)/x;
my $of_moves = qr{/src/(?:rebuild|copy|worker)/|/src/worker\.c$};
my $parentheses = qr/(\((?:[^"()]++|"(?:[^"\\]|\\.)*+"|(?-1))*+\))/;
my $reports = 0;
foreach my $file (glob("$top/*.c $top/src/*.c $top/src/*/*.c"))
{
	my ($name) = $file =~ m{([^/]+)$};
	my $code = slurp_file($file);
	my @unknown;
	while ($code =~ /\berrmsg(?:_plural)?\(\s*((?:"(?:[^"\\]|\\.)*"|U?INT64_FORMAT|\s+)+)/g)
	{
		my $at = $-[0];
		my $message = $1 =~ s/U?INT64_FORMAT/"%d"/gr;
		# the report that it belongs to: a hint says what to do, and what only reports needs none
		my $report = substr $code, rindex(substr($code, 0, $at), 'ereport(');
		$report = $1 if $report =~ /\A(ereport$parentheses)/;
		$reports++;
		next if $report =~ /\berrhint|_hint\(/ || $report =~ /\Aereport\([^,]*(?:NOTICE|LOG|DEBUG\d)\b/;
		next if $file !~ $of_moves && $report =~ /\Aereport\(ERROR\b/ && $report =~ /\bERRCODE_$argument\b/;
		$message = join '', $message =~ /"((?:[^"\\]|\\.)*)"/g;
		$message =~ s/\\"/"/g;
		$message =~ s/%%/\0/g;
		$message =~ s/%[-+ 0-9.]*l*[a-zA-Z]/X/g;
		$message =~ s/\0/%/g;
		# what comes from elsewhere as a whole
		next if $message !~ /[a-z]/;
		push @unknown, $message unless grep { $message =~ $_ } @known;
	}
	is(join("\n", @unknown), '', "$name: its messages are described");
}
cmp_ok($reports, '>', 200, 'messages are looked at');

# ---- the environment of scripts ---------------------------------------------
{
	chomp(my $bin = `pg_config --bindir`);
	local %ENV = (%ENV, map { $_ => 'nonsense' }
		  qw(PGHOST PGHOSTADDR PGPORT PGDATABASE PGUSER PGPASSWORD PGPASSFILE PGSERVICE PGSERVICEFILE PGSYSCONFDIR PGOPTIONS
		  PGAPPNAME PGSSLMODE PGREQUIREPEER PGCONNECT_TIMEOUT PGTARGETSESSIONATTRS PGCLIENTENCODING PGDATESTYLE PGTZ PGGEQO
		  PGDATA PGCTLTIMEOUT LC_ALL));
	my $out = '';
	my $ended = eval {
		IPC::Run::run([ "$top/scripts/smoke", "$bin/pg_config", PostgreSQL::Test::Utils::tempdir_short() ],
			'<', \'', '>&', \$out, IPC::Run::timer($IndexMover::Test::TIMEOUT));
	};
	ok($ended, 'scripts/smoke works whatever the environment says') or diag $out, $@;
}
done_testing();
