# IndexMover::Oracle
#   The oracles of sql/include/oracles.sql as test functions, and the count of what
#   they have compared.
package IndexMover::Oracle;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Wait;
use IPC::Run ();
use List::Util ();
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  verdict_ok files_ok leftovers_ok metadata_ok dump_schema dump_ok all_right survived_ok count_fault standby_ok
);

our $SLACK = $IndexMover::Wait::SLACK;

# What the oracles have compared, and what has become of the calls: each test
# file says so at its end, and scripts/reliability adds it up.
our %count;
my $main = $$;

END
{
	if ($$ == $main)
	{
		note "count: $_ $count{$_}" for sort keys %count;
	}
}

# Every index of the table answers every key rightly, and amcheck is content.  Lookups
# of each of some ten thousand keys take seconds: with large => 1, unless all faults are
# tried, btrees only have to give all rows in their order, beside amcheck, which looks
# for each row from the root.
sub verdict_ok
{
	my ($node, $table, $name, %options) = @_;
	return order_ok($node, $table, $name, %options)
	  if $options{large} && ($ENV{PG_TEST_EXTRA} // '') !~ /\bfaults\b/;
	my $max = $options{max_keys} ? ", $options{max_keys}" : '';
	my ($verdict, $keys, $compared, $wrong) = split /\|/, $node->safe_psql($options{dbname} || 'postgres',
		"SET work_mem = '64MB'; SELECT verdict, keys, compared, wrong FROM oracle.examine('$table'$max)");
	$count{'keys looked up'} += $keys;
	$count{'rows compared both ways'} += $compared;
	$count{'rows missing, extra, or with another key'} += $wrong;
	return like($verdict, qr/^[1-9][0-9]* right$/, "$name: lookup both ways, amcheck");
}

sub order_ok
{
	my ($node, $table, $name, %options) = @_;
	my $db = $options{dbname} || 'postgres';
	my $right = '';
	foreach my $column (split /\n/, $node->safe_psql($db, <<SQL))
SELECT DISTINCT quote_ident(a.attname)
  FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
  JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
 WHERE i.indrelid = '$table'::regclass AND i.indisvalid AND i.indpred IS NULL AND m.amname = 'btree'
SQL
	{
		my $sum = "SELECT ROW(count(*), coalesce(sum(hashtidextended(ctid, 0)), 0)) FROM (SELECT ctid FROM ONLY $table";
		$right .= $node->safe_psql($db, <<SQL);
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
SELECT ($sum ORDER BY $column OFFSET 0) i) = ($sum WHERE ctid >= '(0,0)' OFFSET 0) s);
SQL
	}
	my ($rc, $out, $err) = $node->psql($db,
		"SELECT count(oracle.structure(indexrelid)) > 0 FROM pg_index WHERE indrelid = '$table'::regclass AND indisvalid");
	return like("$rc $out $right", qr/^0 t t+$/, "$name: all rows in order, amcheck") || (diag($err), 0);
}

# No orphaned file, no missing file.
sub files_ok
{
	my ($node, $name, %options) = @_;
	my $files = $node->safe_psql($options{dbname} || 'postgres', 'SELECT * FROM oracle.files()');
	$count{'looks for orphaned and missing files'}++;
	$count{'orphaned bytes found'} += List::Util::sum0($files =~ /^orphan\|.*\|(\d+)$/mg);
	$count{'files missing'} += () = $files =~ /^(?!orphan)./mg;
	return is($files, '', "$name: no orphaned and no missing file");
}

# Nothing of ours is left in catalogs, locks, slots, processes: at the latest
# after "within" seconds (default 0.5, because a process takes its time to exit).
sub leftovers_ok
{
	my ($node, $name, %options) = @_;
	my $deadline = time + (exists $options{within} ? $options{within} : 0.5) * $SLACK;
	my $left;
	while (1)
	{
		$left = $node->safe_psql($options{dbname} || 'postgres', 'SELECT * FROM oracle.leftovers()');
		last if $left eq '' || time > $deadline;
		usleep(50_000);
	}
	$count{'looks for leftovers'}++;
	$count{'leftovers found'} += () = $left =~ /^./mg;
	return is($left, '', "$name: nothing left over");
}

# The catalogs say of the indexes what they said at oracle.remember_metadata().
# With restarted => 1 the numbers of scans are not compared: a crash, or an
# immediate shutdown, loses all statistics.
sub metadata_ok
{
	my ($node, $table, $name, %options) = @_;
	my $but = $options{restarted} ? "attribute <> 'scans'" : 'true';
	my ($compared, @changes) = split /\n/, $node->safe_psql($options{dbname} || 'postgres', <<SQL);
SELECT count(*) FROM oracle.old_metadata WHERE rel = '$table'::regclass::text AND $but;
SELECT * FROM oracle.metadata_changes('$table') WHERE $but;
SQL
	$count{'attributes of indexes compared'} += $compared;
	$count{'attributes of indexes lost or changed'} += @changes;
	return is($compared ? join("\n", @changes) : 'nothing was remembered',
		'', "$name: definition, options, statistics, dependencies as before");
}

# pg_dump --schema-only without the words about tablespaces.
sub dump_schema
{
	my ($node, %options) = @_;
	my ($out, $err);
	my @key = ('--restrict-key=k');
	IPC::Run::run([ 'pg_dump', '--schema-only', @key, '-d', $node->connstr($options{dbname} || 'postgres') ],
		'>', \$out, '2>', \$err)
	  or die "pg_dump failed: $err";
	$out =~ s/^SET default_tablespace = .*\n\n?//mg;
	$out =~ s/^(-- Name: .*); Tablespace: .*$/$1/mg;
	return $out;
}

sub dump_ok
{
	my ($node, $before, $name, %options) = @_;
	return is(dump_schema($node, %options), $before, "$name: pg_dump as before, except for tablespaces");
}

# A standby that has replayed everything has the rows and the indexes of its
# primary, and no file more or less.  Without hiding indexes, which a standby
# cannot do, only a table's single index is looked up there; the others are asked
# by amcheck if they are btrees.
sub standby_ok
{
	my ($primary, $standby, $tables, $name, %options) = @_;
	my $db = $options{dbname} || 'postgres';
	$primary->safe_psql($db, 'CHECKPOINT');
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	files_ok($standby, "$name, standby", %options);
	my $scan = 'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;';
	foreach my $table (@$tables)
	{
		my $rows = "$scan SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM $table t";
		is($standby->safe_psql($db, $rows), $primary->safe_psql($db, $rows), "$name, standby: the rows of $table");
		my $one = $primary->safe_psql($db, "SELECT count(*) FROM pg_index WHERE indrelid = '$table'::regclass") == 1;
		my ($rc, $out, $err) = $standby->psql($db,
			$one ? "SELECT oracle.verdict('$table'" . ($options{max_keys} ? ", $options{max_keys}" : '') . ')'
			: "SELECT oracle.structure(indexrelid) FROM pg_index WHERE indrelid = '$table'::regclass AND indisvalid");
		ok($rc == 0 && (!$one || $out =~ /^1 right$/), "$name, standby: the indexes of $table") or diag "$out $err";
	}
	return;
}

# All of them, for use after each move; true if all is right.
sub all_right
{
	my ($node, $table, $name, %options) = @_;
	my $right = leftovers_ok($node, $name, %options);
	$right = files_ok($node, $name, %options) && $right;
	$right = metadata_ok($node, $table, $name, %options) && $right unless $options{no_metadata};
	$right = verdict_ok($node, $table, $name, %options) && $right;
	return $right;
}

# A fault has been survived: nothing is left over, no file is orphaned or
# missing, the catalogs say what they said, every index answers rightly; and the
# next call, $next, moves.  With count => the fault's kind it is counted.
sub survived_ok
{
	my ($node, $table, $name, $next, %options) = @_;
	wait_for_no_worker($node);
	my $right = all_right($node, $table, $name, within => 5, %options);
	my ($rc, $out, $err) = $node->psql('postgres', $next);
	$right = (like($out, qr/^moved\b/, "$name: the next call works") || (diag($err), 0)) && $right;
	count_fault($options{count}) if $options{count};
	return $right;
}

# Count a fault of this kind as injected (or so many, that are looked after
# together), and as survived if no assertion has failed since the fault before (or
# since this file began): to be called behind the last of those that ask whether it
# was there, and what it has left.
my %before_fault;

sub count_fault
{
	my ($kind, $times) = @_;
	$times //= 1;
	my %now = (failed => scalar(grep { !$_ } Test::More->builder->summary),
		map { $_ => $count{$_} // 0 } 'leftovers found', 'orphaned bytes found');
	my %new = map { $_ => $now{$_} - ($before_fault{$_} // 0) } keys %now;
	$count{"fault, $kind, injected"} += $times;
	$count{"fault, $kind, survived"} += $new{failed} ? 0 : $times;
	$count{"fault, $kind, leftovers"} += $new{'leftovers found'};
	$count{"fault, $kind, orphaned bytes"} += $new{'orphaned bytes found'};
	%before_fault = %now;
	return $new{failed} ? 0 : 1;
}

1;
