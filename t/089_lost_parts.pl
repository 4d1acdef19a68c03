# A part of an index is lost, alone on its device: half of its file, a third in the middle,
# all behind the first page or two.  heal_tablespace() finds each, for every access
# method that a copy can move, and index_mover_check() names it.  What is whole is left
# alone: empty, fresh, loaded, with the zeros that a crash leaves, again and again killed under
# load, in a base backup.
#
# Fault (storage): a part of an index is lost: the last half, a third in the middle, all but the
#   first page or two, for each access method; and nothing that is whole is called lost, with
#   zeros behind it or after kills under load
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path);
use IPC::Run;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

note has_sanitizer() ? 'with the sanitizers' : 'without sanitizers';

my $BLOCK = 8192;
my @methods = qw(btree hash gin gist spgist brin bloom);
my $dir = PostgreSQL::Test::Utils::tempdir();
# a page is made by hand, without a checksum
my $without = `pg_config --version` =~ /PostgreSQL (\d+)/ && $1 >= 18 ? ['--no-data-checksums'] : [];
my $node = new_node('parts', extra => $without, conf => <<'CONF');
shared_preload_libraries = 'index_mover'
checkpoint_timeout = 1h
autovacuum = off
restart_after_crash = on
CONF
sub value { return $node->safe_psql('postgres', $_[0]); }

value('CREATE EXTENSION bloom');
foreach my $method (@methods)
{
	make_path("$dir/$method");
	value("CREATE TABLESPACE ts_$method LOCATION '$dir/$method'");
}
my %column = (btree => 's', hash => 's', gin => 'a', gist => 'p', spgist => 'p', brin => 'id', bloom => 'id, k');
sub index_of
{
	my ($method, $table) = @_;
	my $with = $method eq 'brin' ? ' WITH (pages_per_range = 1)' : $method eq 'gin' ? ' WITH (gin_pending_list_limit = 64)' : '';
	return "CREATE INDEX ${table}_$method ON $table USING $method ($column{$method})$with TABLESPACE ts_$method;\n";
}
sub make
{
	my ($table, $rows) = @_;
	my $definition = '(id int, k int, s text, a int[], p point)';
	return value("CREATE TABLE $table $definition;\n" . insert($table, 1, $rows) . join('', map { index_of($_, $table) } @methods));
}
sub insert
{
	my ($table, $from, $to) = @_;
	return "INSERT INTO $table SELECT g, g % 300, md5(g::text), ARRAY[g % 50, g], point(g * 7919::bigint % 100003, g)
		FROM generate_series($from, $to) g;\n";
}
# what the call would heal, of all tablespaces
sub lost
{
	return value('SELECT coalesce(string_agg(name, $$ $$ ORDER BY name), $$$$) FROM (' . join(' UNION ALL ',
		map { "SELECT name FROM heal_tablespace('ts_$_', dry_run => true)" } @methods) . ') l');
}
sub named
{
	return value("SELECT coalesce(string_agg(split_part(object, '.', 2), ' ' ORDER BY object), '') FROM index_mover_check()
		WHERE kind = 'lost file'");
}
sub whole { return is(lost() . '|' . named(), '|', "$_[0]: nothing is lost"); }

# ---- whole ---------------------------------------------------------------------------------------
make('none', 0);
make('few', 5);
make('t', 30000);
value('CREATE UNLOGGED TABLE u (i int); CREATE INDEX u_i ON u (i) TABLESPACE ts_btree; INSERT INTO u SELECT generate_series(1, 3000);
	VACUUM ANALYZE u');
whole('fresh');
value(insert('few', 6, 4000) . insert('t', 30001, 33000) . "INSERT INTO none SELECT * FROM t LIMIT 300; DELETE FROM t WHERE id % 3 = 0;
	VACUUM t; DELETE FROM few; VACUUM few;\n" . insert('few', 1, 3000) . 'CHECKPOINT;');
whole('loaded, and vacuumed');
$node->stop('immediate');
$node->start;
whole('after a crash, which empties what is unlogged');

# zeros behind the end, which a crash leaves where a file was extended, and more of them behind an insertion there
my %path = map { $_ => $node->data_dir . '/' . value("SELECT pg_relation_filepath('t_$_')") } @methods;
sub with_server_stopped
{
	my ($what) = @_;
	value('CHECKPOINT');
	$node->stop;
	$what->();
	return $node->start;
}
with_server_stopped(sub {
	append_to_file($path{$_}, "\0" x (3 * $BLOCK)) foreach @methods;
	# and what a crash in makeSublist() of ginfast.c leaves: a page of a pending list that leads to zeros, and to which nothing leads
	append_to_file($path{gin}, pack('QSSSSSSL x' . ($BLOCK - 32) . 'LSS', 0, 0, 0, 24, $BLOCK - 8, $BLOCK - 8, $BLOCK | 4, 0,
		(-s $path{gin}) / $BLOCK + 1, 0, 16) . "\0" x $BLOCK);
});
whole('zeros behind the end');
value(insert('t', 40001, 44000));
whole('and behind these what was inserted');

# pg_dump of 18 brings statistics along
if ($node->pg_version >= 18)
{
	value("SELECT pg_restore_relation_stats('schemaname', 'public', 'relname', 't_$_', 'relpages', 99999)")
		foreach grep { $_ ne 'bloom' } @methods;
	whole('statistics of a larger index');
}

# killed under load
foreach my $n (1 .. 4)
{
	append_to_file("$dir/load$n.sql", join '', 'SET synchronous_commit = off;', map { my $from = $n * 100000 + $_ * 500;
		insert('t', $from, $from + 499) . "DELETE FROM t WHERE id BETWEEN $from - 2000 AND $from - 1600;\n"
			. ($_ % 5 ? '' : "VACUUM t;\n") } 1 .. 190);
}
sub load
{
	my ($seconds) = @_;
	my @psql = ('psql', '-X', '-q', '-d', $node->connstr('postgres'));
	my @load = map { IPC::Run::start([ @psql, '-f', "$dir/load$_.sql" ], '>&', '/dev/null') } 1 .. 4;
	select undef, undef, undef, $seconds;
	return @load;
}
foreach my $round (picked { $_ <= 2 } 'kills', 1 .. 8)
{
	my @load = load(0.4 + 0.2 * $round);
	value('CHECKPOINT') if $round % 2;
	# any of them, whatever it does just now
	my $pid = value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() LIMIT 1");
	my $log = -s $node->logfile;
	kill 'KILL', $pid;
	$node->wait_for_log(qr/database system is ready to accept connections/, $log);
	eval { $_->finish } foreach @load;
	whole("killed under load, $round");
	value('REINDEX TABLE t') if $round % 4 == 0;
}
my $other = PostgreSQL::Test::Cluster->new('backup');
{
	# each tablespace has its place; and the library is not preloaded, so that all pages are read
	my %map = map { ("$dir/$_" => "$dir/$_.backup") } @methods;
	my $target = $other->data_dir;
	command_ok([ 'pg_basebackup', '-D', "$target.new", '-h', $node->host, '-p', $node->port, '-c', 'fast', '--no-sync',
		map { ('-T', "$_=$map{$_}") } sort keys %map ], 'a base backup');
	$other->init;
	File::Path::rmtree($target);
	rename "$target.new", $target or die $!;
	$other->append_conf('postgresql.conf', sprintf "shared_preload_libraries = ''\nport = %d\nunix_socket_directories = '%s'\n",
		$other->port, $other->host);
	$other->start;
	(my $old, $node) = ($node, $other);
	whole('in a base backup');
	$other->stop;
	$node = $old;
}

# ---- ruins ---------------------------------------------------------------------------------------
value('DROP TABLE none, few, u; TRUNCATE t;' . insert('t', 1, 30000));
value($_) foreach 'VACUUM ANALYZE t', 'REINDEX TABLE t', "SELECT oracle.remember_keys('t')";
sub zeros
{
	my ($path, $first, $blocks) = @_;
	open(my $fh, '+<:raw', $path) or die "$path: $!";
	seek($fh, $first * $BLOCK, 0);
	print $fh "\0" x ($blocks * $BLOCK);
	close($fh) or die $!;
	return;
}
my %ruin = (
	'the first half' => sub { truncate $_[0], int($_[1] / 2) * $BLOCK },
	'one page' => sub { truncate $_[0], $BLOCK },
	'two pages, then zeros' => sub { zeros($_[0], 2, $_[1] - 2) },
	'zeros in the middle third' => sub { zeros($_[0], int($_[1] / 3), int($_[1] / 3)) },
	'zeros in the last half' => sub { zeros($_[0], int($_[1] / 2), $_[1] - int($_[1] / 2)) },
	'zeros behind the first page' => sub { zeros($_[0], 1, $_[1] - 1) });
foreach my $ruin (picked { !/last half|behind/ } 'ruins', sort keys %ruin)
{
	# zeros in bloom are known by the evidence of its device only
	my @found = sort grep { $_ ne 'bloom' || $ruin !~ /zeros/ } @methods;
	%path = map { $_ => $node->data_dir . '/' . value("SELECT pg_relation_filepath('t_$_')") } @methods;
	my %blocks = map { $_ => value("SELECT pg_relation_size('t_$_') / $BLOCK") } @methods;
	cmp_ok($blocks{$_}, '>', 3, "t_$_ has $blocks{$_} pages") foreach @methods;
	with_server_stopped(sub { $ruin{$ruin}->($path{$_}, $blocks{$_}) foreach @found });
	is(lost(), join(' ', map { "t_$_" } @found), "$ruin: found");
	is(named(), join(' ', map { "t_$_" } @found), "$ruin: index_mover_check() names them");
	note value("SELECT name || ': ' || detail FROM heal_tablespace('ts_$_', dry_run => true)") foreach @found;
	is(value("SELECT string_agg(status, ' ') FROM heal_tablespace('ts_$_')"), 'moved', "$ruin: $_ is healed") foreach @found;
	whole($ruin);
}
# ---- a hole between the pages that a check always reads -------------------------------------------
# What heal_tablespace() finds, index_mover_check() names: it reads as many pages, while time is left, and whatever
# another look has found.
{
	value('CREATE TABLE holes (id int, s text); INSERT INTO holes SELECT g, md5(g::text) FROM generate_series(1, 60000) g;
		CREATE INDEX holes_i ON holes (s) TABLESPACE ts_btree; VACUUM ANALYZE holes');
	my $path = $node->data_dir . '/' . value("SELECT pg_relation_filepath('holes_i')");
	my $blocks = (-s $path) / $BLOCK;
	cmp_ok($blocks, '>', 200, "holes_i has $blocks pages");
	with_server_stopped(sub { zeros($path, 5 * int($blocks / 16) + 2, 2) });
	ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM index_mover_check() WHERE object = 'public.holes_i'"),
		'a hole of two pages: index_mover_check() names it');
	my $here = "SELECT count(*) FROM index_mover_check() WHERE object = 'public.holes_i' AND kind = 'lost file'";
	is(value("$here; " x 5), join("\n", (1) x 5), 'a hole of two pages is named each time');
	is(lost(), 'holes_i', 'a hole of two pages: the call names it, too');
	is(value("SELECT status FROM heal_tablespace('ts_btree')"), 'moved', 'a hole of two pages: it is healed');
	whole('a hole of two pages');
	value('DROP TABLE holes');
}

verdict_ok($node, 't', 'in the end', max_keys => 50);
files_ok($node, 'in the end');
no_finding_ok($node);
$node->stop;
done_testing();
