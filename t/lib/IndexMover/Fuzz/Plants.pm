# IndexMover::Fuzz::Plants
#   Faults that are planted to show that each oracle of the fuzzer sees one.
package IndexMover::Fuzz::Plants;

use strict;
use warnings;

use IndexMover::Fuzz::Actions;
use IndexMover::Fuzz::Client;
use IndexMover::Fuzz::World qw(quote_name literal);

# name => [ oracle, when, what, for the reader ]
my %plants = (
	signal => [ 'signal', 'look', sub { my ($w) = @_; kill 'SEGV', $w->{admin}{pid}; sleep 3; }, 'a server process gets SIGSEGV' ],
	assertion => [ 'assertion', 'look', sub { to_log($_[0], 'TRAP: failed Assert("planted"), File: "planted.c", Line: 1, PID: 1') },
		'a line TRAP: in the server log' ],
	sanitizer => [ 'sanitizer', 'look', sub { to_log($_[0], 'planted.c:1:1: runtime error: planted') },
		'a line of UBSan in the server log' ],
	'internal error' => [ 'internal error', 'start', sub { replace($_[0], 'alter_move',
		"RAISE SQLSTATE 'XX000' USING MESSAGE = 'cache lookup failed for relation 1'") },
		'alter_move() fails with XX000' ],
	cancel => [ 'cancel', 'start', sub { replace($_[0], 'pause_move',
		'LOOP BEGIN PERFORM pg_sleep(1); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP') },
		'pause_move() goes on after a cancel' ],
	lock => [ 'lock', 'round', sub { in_worker($_[0], 'LOCK TABLE fz.big IN SHARE UPDATE EXCLUSIVE MODE; FOR i IN 1..14 '
		. 'LOOP BEGIN PERFORM pg_sleep(1); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP') },
		'a worker holds a lock on a table that it does not move' ],
	'session lock' => [ 'session lock', 'start', sub { replace($_[0], 'alter_move', 'PERFORM pg_advisory_lock_shared(1); RETURN false') },
		'alter_move() leaves its session a lock' ],
	'lock at rest' => [ 'lock at rest', 'rest', sub {
			my ($w) = @_;
			$w->{planted} = IndexMover::Fuzz::Client->new(node => $w->{node}, db => 'fuzz', role => $w->{admin}{role}, name => 'planted');
			$w->{planted}->run('SELECT pg_advisory_lock(1)', 60); }, 'a session that stays holds a lock' ],
	leftover => [ 'leftover', 'look', sub {
			my ($w) = @_;
			my $oid = ask($w, 'SELECT oid FROM pg_database WHERE datname = current_database()');
			open(my $fh, '>', $w->{node}->data_dir . "/index_mover.job.$oid.99999") or die; }, 'the file of a job that has ended' ],
	definition => [ 'definition', 'look', sub { sql($_[0], 'ALTER TABLE fz.kept REPLICA IDENTITY DEFAULT') },
		'an index is no replica identity any more' ],
	hang => [ 'hang', 'round', sub { in_worker($_[0],
		'LOOP BEGIN PERFORM pg_sleep(1); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP') },
		'a worker that goes on after its job was canceled' ],
	file => [ 'file', 'look', sub {
			my ($w) = @_;
			my $oid = ask($w, 'SELECT oid FROM pg_database WHERE datname = current_database()');
			open(my $fh, '>', $w->{node}->data_dir . "/base/$oid/99999") or die;
			print $fh "\0" x 8192;
			close $fh; }, 'a file of 8 kB that no relation has' ],
	rows => [ 'rows', 'look', sub { sql($_[0], 'DELETE FROM fz.d0 WHERE id = (SELECT min(id) FROM fz.d0)') },
		'a row is deleted from a table and not from its twin' ],
	index => [ 'index', 'look', sub {
			sql($_[0], "UPDATE pg_index SET indisready = false WHERE indexrelid = 'fz.big_pkey'::regclass");
			sql($_[0], "INSERT INTO fz.big VALUES (-1, 'planted')");
			sql($_[0], "UPDATE pg_index SET indisready = true WHERE indexrelid = 'fz.big_pkey'::regclass"); },
				'a row is inserted while its index is off' ],
	plan => [ 'plan', 'between', sub {
			my ($w, $call) = @_;
			my ($relation) = $call =~ /^move_\w+\('([^']+)'/ or return;
			sql($w, "CREATE INDEX ON $relation (" . ($relation eq 'fz.empty' ? 'i' : 'id') . ')'); },
				'an index more, between the plan and the run' ],
	role => [ 'role', 'look', sub { sql($_[0], 'SELECT fz.rec(\'planted\', \'{outsider}\', 1)') }, 'an expression runs as a superuser' ],
	view => [ 'view', 'start', \&show_all, 'index_mover_history has no WHERE' ],
	command => [ 'command', 'look', \&misprint, 'printed_command() writes FORM in place of FROM' ],
	undocumented => [ 'undocumented', 'source', sub { my ($w, $source) = @_; delete $source->{states}{22023} },
		'SQLSTATE 22023 is not in the reference' ],
	standby => [ 'rows', 'standby', sub { my ($w, $ask) = @_; $ask->('DELETE FROM fz.d0 WHERE id = (SELECT min(id) FROM fz.d0)') },
		'a row is deleted on the promoted standby, and not from its twin' ]);

sub names { return sort keys %plants; }

sub oracle_of { my ($name) = @_; return $plants{$name}[0]; }

sub about { my ($name) = @_; return $plants{$name}[3]; }

sub exists { my ($name) = @_; return exists $plants{$name}; }

sub plant
{
	my ($name, $w, $when, @more) = @_;
	my (undef, $at, $code) = @{ $plants{$name} };
	$code->($w, @more) if $at eq $when;
	return;
}

sub between
{
	my ($name, $w) = @_;
	my (undef, $at, $code) = @{ $plants{$name} };
	return $at eq 'between' ? sub { $code->($w, @_) } : undef;
}

sub sql
{
	my ($w, $sql) = @_;
	my $answer = $w->{admin}->run($sql, 120);
	die "plant: $answer->{errors}[0]{M} in $sql\n" if $answer && @{ $answer->{errors} };
	return $answer;
}

sub ask { my ($w, $sql) = @_; return sql($w, $sql)->{rows}[0][0]; }

sub to_log
{
	my ($w, $line) = @_;
	open(my $fh, '>>', $w->{node}->logfile) or die;
	print $fh "$line\n";
	close $fh;
	return;
}

# A worker runs this, for an index of a table of a superuser.
sub in_worker
{
	my ($w, $body) = @_;
	sql($w, <<SQL);
CREATE OR REPLACE FUNCTION fz.planted_body() RETURNS void LANGUAGE plpgsql AS \$plant\$ BEGIN $body; END \$plant\$;
CREATE OR REPLACE FUNCTION fz.planted(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS \$plant\$
BEGIN
	IF (SELECT backend_type LIKE 'index_mover%' FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()) THEN
		PERFORM fz.planted_body();
	END IF;
	RETURN i;
END \$plant\$;
CREATE TABLE IF NOT EXISTS fz.planted AS SELECT 1 AS i;
CREATE INDEX IF NOT EXISTS planted_ix ON fz.planted (fz.planted(i));
SQL
	# (that of an earlier round may not be over)
	$w->{admin}->run("SELECT $w->{catalogs}{schema}.move_indexes('fz.planted', 'fz_a', 'rebuild', wait => false)", 60);
	return;
}

# A function of the extension becomes one in PL/pgSQL that does this.
sub replace
{
	my ($w, $name, $body) = @_;
	my $signature = ask($w, <<SQL);
SELECT format('%s(%s) RETURNS %s', p.oid::regproc, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid))
  FROM pg_proc p WHERE p.proname = '$name' AND p.pronamespace <> 'index_mover_call'::regnamespace
SQL
	sql($w, "CREATE OR REPLACE FUNCTION $signature LANGUAGE plpgsql AS \$plant\$ BEGIN $body; END \$plant\$");
	return;
}

sub show_all
{
	my ($w) = @_;
	my $view = "$w->{catalogs}{schema}.index_mover_history";
	my $query = ask($w, "SELECT pg_get_viewdef('$view'::regclass)");
	$query =~ s/\bWHERE \(pg_has_role\(j\.role.*\z/WHERE true/s or die "plant: no WHERE in $query\n";
	sql($w, "CREATE OR REPLACE VIEW $view WITH (security_barrier) AS $query");
	return;
}

# A prepared transaction is something that a command is printed for.
sub misprint
{
	my ($w) = @_;
	sql($w, <<'SQL');
CREATE OR REPLACE FUNCTION index_mover.printed_command(name text, VARIADIC arguments text[] DEFAULT '{}') RETURNS text
LANGUAGE sql STABLE STRICT AS $$ SELECT 'SELECT * FORM index_mover_call.' || name || '(1)' $$
SQL
	sql($w, 'DROP TABLE IF EXISTS fz.planted');
	sql($w, "BEGIN; CREATE TABLE fz.planted (i int); PREPARE TRANSACTION 'planted'");
	return;
}

1;
