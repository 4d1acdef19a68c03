# IndexMover::Fuzz::Watch
#   The oracles of the fuzzer.  Each returns findings, [ oracle, text ]; %FATAL says which
#   of them no change may land with.
package IndexMover::Fuzz::Watch;

use strict;
use warnings;

use Exporter 'import';
use File::Find ();
use IndexMover::Fuzz::Random;
use IndexMover::Fuzz::World qw(quote_name literal);
use PostgreSQL::Test::Utils ();
use Time::HiRes qw(time sleep);

our @EXPORT_OK = qw(%FATAL read_source scan_log check_answer lock_query check_locks check_idle check_rest check_rows check_indexes
  check_files check_leftovers definitions check_definitions check_views check_plan check_commands cpu_seconds);

our %FATAL = map { $_ => 1 } qw(assertion signal rows index role sanitizer);

# ---------------------------------------------------------------------------
# What the source and the reference say
# ---------------------------------------------------------------------------
sub read_source
{
	my ($root) = @_;
	my $source = { files => {}, messages => [], states => {} };
	File::Find::find({ no_chdir => 1, wanted => sub {
		return unless /\.c$/;
		my $file = $_;
		$source->{files}{ $file =~ s{.*/}{}r } = 1;
		my $code = PostgreSQL::Test::Utils::slurp_file($file);
		while ($code =~ /((?:"(?:[^"\\]|\\.)*"|U?INT64_FORMAT|\s+)+)/g)
		{
			my $text = join '',
				map { /^"/ ? s/^"|"$//gr =~ s/\\(.)/$1/gr : /FORMAT/ ? '%d' : '' } $1 =~ /("(?:[^"\\]|\\.)*"|U?INT64_FORMAT)/g;
			push @{ $source->{messages} }, $text if $text =~ /\w\w.* .*\w/;
		}
	} }, "$root/src", "$root/index_mover.c");
	my $reference = PostgreSQL::Test::Utils::slurp_file("$root/docs/reference.md");
	$source->{states}{$1} = 1 while $reference =~ /\b([0-9][0-9A-Z]{4}|XX00[12]|HV00\w|F0000)\b/g;
	my @patterns = map { join '.*', map { quotemeta } split /%(?:[-+0-9.*]*(?:l|ll|z)?[a-zA-Z]|%)/, $_, -1 } @{ $source->{messages} };
	@patterns = grep { /[a-z]{3}/ } @patterns;
	$source->{message} = join '|', @patterns;
	$source->{message} = qr/^(?:$source->{message})/s;
	return $source;
}

# ---------------------------------------------------------------------------
# The server log
# ---------------------------------------------------------------------------

# $killed: pids that the fuzzer has killed itself.
sub scan_log
{
	my ($file, $offset, $source, $killed, $ours) = @_;
	my $log = PostgreSQL::Test::Utils::slurp_file($file, $offset);
	my @findings;
	my @entries = split /^(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)/m, $log;
	for my $i (0 .. $#entries)
	{
		my $entry = $entries[$i];
		my $context = join '', @entries[ $i .. ($i + 4 > $#entries ? $#entries : $i + 4) ];
		$context = substr($context, 0, 2500);
		push @findings, [ 'sanitizer', $context ] if $entry =~ /runtime error: |ERROR: AddressSanitizer/;
		push @findings, [ 'assertion', $context ] if $entry =~ /^TRAP: /m;
		push @findings, [ 'role', $context ] if $entry =~ /FUZZ foreign role/ && $entry =~ /\] [^:]*LOG: /;
		if ($entry =~ /\(PID (\d+)\) was terminated by signal (\d+)/)
		{
			push @findings, [ 'signal', $context ] unless $2 == 9 && $killed->{$1};
		}
		push @findings, [ 'signal', $context ] if $entry =~ / PANIC: /;
		# an error that no user should see: of our code, or in a call of it
		if ($entry =~ /\s(ERROR|FATAL|WARNING):  (XX000|\w{5}): (.*)/ && ($2 eq 'XX000' || $3 =~ /cache lookup failed/))
		{
			my ($message) = $3;
			my ($pid) = $entry =~ /\[(\d+)\]/;
			my $whole = $entry;
			for my $j ($i + 1 .. $#entries)
			{
				last if $entries[$j] =~ /\[$pid\].*(?:ERROR|FATAL|WARNING|LOG):  /;
				$whole .= $entries[$j] if $entries[$j] =~ /\[$pid\]/;
				last if $j > $i + 30;
			}
			my ($location) = $whole =~ /LOCATION:  \w+, ([\w.]+):\d+/;
			my $statement = $whole =~ /STATEMENT:  (.*)/s ? $1 : '';
			my $is_ours = $location && $source->{files}{$location} || $entry =~ /\] index_mover/ || $statement =~ $ours
				|| $whole =~ /CONTEXT: .*$ours/s;
			push @findings, [ 'internal error', substr($whole, 0, 2500) ] if $is_ours;
		}
	}
	return ($offset + length $log, @findings);
}

# ---------------------------------------------------------------------------
# What a client is told
# ---------------------------------------------------------------------------
sub check_answer
{
	my ($answer, $source, $is_call) = @_;
	my @findings;
	foreach my $error (@{ $answer->{errors} })
	{
		my $text = "$error->{C}: $error->{M}" . (defined $error->{D} ? " DETAIL: $error->{D}" : '') . (defined $error->{R}
			? " ($error->{R}, $error->{F}:$error->{L})" : '');
		my $is_ours = $error->{F} && $source->{files}{ $error->{F} =~ s{.*/}{}r };
		push @findings, [ 'internal error', $text ] if ($is_ours || $is_call) && ($error->{C} eq 'XX000'
			|| $error->{M} =~ /cache lookup failed/);
		next unless $is_ours;
		push @findings, [ 'undocumented', "the reference does not have the SQLSTATE of $text" ] unless $source->{states}{ $error->{C} };
		push @findings, [ 'undocumented', "no message of the source: $text" ] unless $error->{M} =~ $source->{message};
	}
	# an error of a move is in its row
	if ($is_call)
	{
		foreach my $row (@{ $answer->{rows} })
		{
			push @findings, [ 'internal error', join('|', map { $_ // '' } @$row) ] if grep { defined && ($_ eq 'XX000'
				|| /cache lookup failed/) } @$row;
		}
	}
	return @findings;
}

# ---------------------------------------------------------------------------
# Locks of workers on relations other than the one that they move
# ---------------------------------------------------------------------------
sub lock_query
{
	my ($schema) = @_;
	return <<SQL;
SELECT l.pid, l.relation, l.mode, l.relation::regclass, p.name, p.phase, coalesce(p.lock_attempts, 0)
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN $schema.index_mover_progress p ON p.pid = l.pid
  LEFT JOIN pg_index i ON i.indexrelid = l.relation
  LEFT JOIN pg_class t ON t.reltoastrelid = coalesce(i.indrelid, l.relation) AND t.relkind IN ('r', 'm')
 WHERE a.backend_type LIKE 'index\\_mover%' AND a.datname = current_database() AND l.locktype = 'relation' AND l.granted
	AND l.relation >= 16384
   AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
   AND NOT EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'index_mover'
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = coalesce(i.indrelid, l.relation))
   AND coalesce(t.oid, i.indrelid, l.relation) NOT IN (
		SELECT coalesce(x.indrelid, r.oid) FROM (SELECT to_regclass(p.name) AS oid UNION SELECT to_regclass(p.table_name)) r
		  LEFT JOIN pg_index x ON x.indexrelid = r.oid WHERE r.oid IS NOT NULL
		UNION SELECT o.oid FROM pg_class o WHERE o.reltoastrelid = to_regclass(p.name)
		UNION SELECT pg_partition_ancestors(r.oid) FROM (SELECT to_regclass(p.table_name) AS oid) r WHERE r.oid IS NOT NULL)
SQL
}

# $seen: { "pid relation mode" => since }; a finding when a lock has been there for $limit seconds.
sub check_locks
{
	my ($rows, $seen, $limit) = @_;
	my (%now, @findings);
	foreach my $row (@$rows)
	{
		my $key = "$row->[0] $row->[1] $row->[2]";
		$now{$key} = $seen->{$key} // time;
		push @findings, [ 'lock', "for more than $limit s a worker that does not move it has held: " . join('|', map { $_ // '' } @$row) ]
		  if time - $now{$key} > $limit;
	}
	%$seen = %now;
	return @findings;
}

# Rows of oracle.idle_locks(): a session of ours holds nothing between two transactions.  What it holds in the transaction
# in which it takes others' invalidation messages, it does not hold at a second look.  $seen: { "pid lock" => looks }.
sub check_idle
{
	my ($rows, $seen) = @_;
	return map { [ 'session lock', 'an idle session holds a lock: ' . join('|', map { $_ // '' } @$_) ] }
	  grep { $seen->{"$_->[0] $_->[1]"}++ } @$rows;
}

# All sessions have ended, and all jobs: no process holds a lock for so many seconds.
sub check_rest
{
	my ($ask, $seconds) = @_;
	my $until = time + $seconds;
	my %always;
	for (my $look = 0;; $look++)
	{
		my %now = map { join('|', map { $_ // '' } @$_) => 1 } @{ $ask->(<<'SQL') };
SELECT a.pid, a.backend_type, a.application_name, l.locktype, l.mode, l.relation::regclass, l.objid, left(a.query, 200)
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE a.pid <> pg_backend_pid() AND (a.backend_type LIKE 'index\_mover%' OR a.backend_type = 'client backend')
SQL
		%always = map { $_ => 1 } grep { !$look || $always{$_} } keys %now;
		return unless %always;
		last if time > $until;
		sleep 0.5;
	}
	return map { [ 'lock at rest', "held for $seconds s when all sessions and jobs have ended: $_" ] } sort keys %always;
}

# Seconds of CPU that a process has used.
sub cpu_seconds
{
	my ($pid) = @_;
	open(my $fh, '<', "/proc/$pid/stat") or return;
	my $line = <$fh> // return;
	my @fields = split ' ', $line =~ s/^.*\) //r;
	return ($fields[11] + $fields[12]) / 100;
}

# ---------------------------------------------------------------------------
# At rest
# ---------------------------------------------------------------------------
sub check_rows
{
	my ($ask, $twins) = @_;
	my @findings;
	foreach my $table (@$twins)
	{
		my $sum = sub { "(SELECT count(*) || ' rows, sum ' ||
			coalesce(sum(hashtextextended(ROW(id, k, t, n, p::text, rng, a, doc, j)::text, 0)), 0) FROM $_[0].$table)" };
		my $rows = $ask->("SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SELECT "
			. $sum->('fz') . ', ' . $sum->('twin'));
		push @findings, [ 'rows', "fz.$table: $rows->[0][0]; its twin: $rows->[0][1]" ] if @$rows && $rows->[-1][0] ne $rows->[-1][1];
	}
	return @findings;
}

sub check_indexes
{
	my ($ask, $twins, $is_standby) = @_;
	my @findings;
	if (!$is_standby)
	{
		foreach my $table (map { $_ eq 'd8' ? ($_, '"d8 child"') : $_ } @$twins)
		{
			my $rows = $ask->("RESET ALL; SELECT oracle.verdict('fz.$table', 30)");
			my $verdict = $rows->[-1][0] // next;
			push @findings, [ 'index', "fz.$table: $verdict" ] unless $verdict =~ /^\d+ right(, no keys)?$/;
		}
	}
	my $rows = $ask->(<<'SQL', 1);
SELECT count(oracle.bt_index_check(i.indexrelid, true)) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
	JOIN pg_am a ON a.oid = c.relam
  JOIN pg_class t ON t.oid = i.indrelid
 WHERE a.amname = 'btree' AND i.indisvalid AND i.indisready AND c.relkind = 'i' AND c.relpersistence <> 't'
   AND c.relnamespace IN ('fz'::regnamespace, '"fz Other"'::regnamespace, 'pg_toast'::regnamespace, 'index_mover'::regnamespace)
   AND NOT (pg_is_in_recovery() AND c.relpersistence = 'u')
SQL
	# (a standby cancels what is in the way of recovery)
	push @findings, [ 'index', "amcheck: $rows->{M}" ] if ref $rows eq 'HASH' && $rows->{C} !~ /^(40001|57014|55P03)/;
	$rows = $ask->(<<'SQL', 1);
SELECT c.oid::regclass, v.* FROM pg_class c, LATERAL oracle.verify_heapam(c.oid, check_toast => true) v
 WHERE c.relnamespace = 'fz'::regnamespace AND c.relkind IN ('r', 'm') AND c.relpersistence = 'p' AND NOT pg_is_in_recovery() LIMIT 5
SQL
	push @findings, [ 'index', "verify_heapam: " . (ref $rows eq 'HASH' ? $rows->{M} : join '; ', map { join '|',
		map { $_ // '' } @$_ } @$rows) ]
	  if ref $rows eq 'HASH' ? $rows->{C} !~ /^(40001|57014|55P03)/ : @$rows;
	return @findings;
}

# Files without an owner.  $ledger: those that the ledger has named at some time; of others
# what core leaves in a crash is core's, and is kept in $core.
sub check_files
{
	my ($ask, $ledger, $had_crash, $core) = @_;
	my @findings;
	my $rows = $ask->('SELECT * FROM oracle.files()');
	foreach my $row (@$rows)
	{
		my ($problem, $path, $size) = map { $_ // '' } @$row;
		if ($problem eq 'orphan')
		{
			my ($number) = $path =~ m{/(?:t\d+_)?(\d+)[^/]*$};
			next if $size eq '0' && !$ledger->{$number};
			$core->{$path} = 1 if $had_crash && !$ledger->{$number};
			next if $core->{$path};
			next if $path =~ m{/t\d+_};
		}
		# a build by core that has failed: of an unlogged index a promotion leaves no file
		next if $problem eq 'missing'
			&& @{ $ask->("SELECT 1 FROM pg_index WHERE NOT indisready AND pg_relation_filepath(indexrelid) = '$path'") };
		push @findings, [ 'file', "$problem: $path ($size bytes)" ];
	}
	return @findings;
}

# What a job may leave in our tables, in catalogs and beside relations, when all is quiet and
# index_mover_cleanup() was called.
sub check_leftovers
{
	my ($ask, $schema, $directory) = @_;
	my @left = map { join ' ', map { $_ // '' } @$_ } @{ $ask->(<<SQL) };
SELECT 'ledger row', kind::text, relation, new_index, relfilenumber, job FROM index_mover.ledger
UNION ALL
SELECT 'history', h.status, NULL, NULL, NULL, h.job FROM $schema.index_mover_history h WHERE h.status IN ('queued', 'running', 'paused')
UNION ALL
SELECT 'job', j.status, NULL, NULL, NULL, j.job FROM $schema.index_mover_jobs j WHERE j.status IN ('queued', 'running', 'paused')
UNION ALL
SELECT 'progress', p.phase, NULL, NULL, NULL, p.job FROM $schema.index_mover_progress p
UNION ALL
SELECT 'apart from its table', p.relname::text, NULL, NULL, NULL, NULL
  FROM pg_class c LEFT JOIN pg_index i ON i.indrelid = c.reltoastrelid
  JOIN pg_class p ON p.oid IN (c.reltoastrelid, i.indexrelid)
 WHERE p.reltablespace <> c.reltablespace
SQL
	my $database = $ask->('SELECT oid FROM pg_database WHERE datname = current_database()')->[0][0];
	push @left, grep { !m{/index_mover\.evidence$} && !m{/index_mover\.job\.(?!$database\.)\d+\.} } glob("$directory/index_mover*"),
	  glob("$directory/base/*/*index_mover*"), glob("$directory/pg_tblspc/*/*index_mover*.tmp"),
	  glob("$directory/pg_tblspc/*/*/*index_mover*"),
	  glob("$directory/pg_tblspc/*/*/*/*index_mover*");
	return map { [ 'leftover', "at rest, after index_mover_cleanup(): $_" ] } @left;
}

# All that the catalogs say of the table that no DDL changes, { object => text }, but where it
# is and how large.
sub definitions
{
	my ($ask) = @_;
	my $rows = $ask->(<<'SQL');
WITH own AS (SELECT oid, relname FROM pg_class WHERE oid = 'fz.kept'::regclass
	UNION ALL SELECT c.oid, c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = 'fz.kept'::regclass)
SELECT 'relation ' || c.relname, (to_jsonb(c) - '{oid,relfilenode,reltablespace,relpages,reltuples,relallvisible,relallfrozen,
	relfrozenxid,relminmxid,reltoastrelid,relhasindex}'::text[])::text FROM own JOIN pg_class c USING (oid)
UNION ALL
SELECT format('column %s.%s', o.relname, a.attname), (to_jsonb(a) - '{attrelid,attcacheoff}'::text[])::text
  FROM own o JOIN pg_attribute a ON a.attrelid = o.oid
UNION ALL
SELECT format('index %s, %s', m.index_name, m.attribute), m.value FROM oracle.metadata('fz.kept') m
 WHERE m.attribute NOT IN ('tablespace', 'scans')
UNION ALL
SELECT 'statistics ' || s.stxname, pg_get_statisticsobjdef(s.oid) || s.stxowner FROM pg_statistic_ext s
 WHERE s.stxrelid = 'fz.kept'::regclass
UNION ALL
SELECT 'constraint ' || k.conname, pg_get_constraintdef(k.oid) FROM pg_constraint k WHERE k.conrelid = 'fz.kept'::regclass
UNION ALL
SELECT 'rule ' || r.rulename, pg_get_ruledef(r.oid) FROM pg_rewrite r WHERE r.ev_class = 'fz.kept'::regclass
UNION ALL
SELECT 'policy ' || p.polname, pg_get_expr(p.polqual, p.polrelid) FROM pg_policy p WHERE p.polrelid = 'fz.kept'::regclass
UNION ALL
SELECT 'publication ' || p.pubname, r.prrelid::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
 WHERE r.prrelid = 'fz.kept'::regclass
SQL
	return { map { $_->[0] => $_->[1] // '' } @$rows };
}

sub check_definitions
{
	my ($ask, $before) = @_;
	my $now = definitions($ask);
	my %all = (%$before, %$now);
	return map { [ 'definition', "$_: " . ($before->{$_} // 'not there') . '; now: ' . ($now->{$_} // 'not there') ] }
	  grep { ($before->{$_} // '') ne ($now->{$_} // '') || exists $before->{$_} != exists $now->{$_} } sort keys %all;
}

# What the views show a role, against what it may see.
sub check_views
{
	my ($ask, $schema) = @_;
	my @findings;
	foreach my $role (@IndexMover::Fuzz::World::LOGINS)
	{
		my $r = quote_name($role);
		my $l = literal($role);
		my %may = (
			index_mover_jobs =>
				"SELECT j.job FROM index_mover.job_log j WHERE pg_has_role($l, j.role, 'USAGE')
					OR pg_has_role($l, 'pg_read_all_stats', 'USAGE')
				OR EXISTS (SELECT FROM index_mover.move_log m JOIN pg_class c ON c.oid = m.table_oid WHERE m.job = j.job
					AND pg_has_role($l, c.relowner, 'USAGE'))",
			index_mover_history => "SELECT m.job FROM index_mover.move_log m JOIN index_mover.job_log j USING (job)
				WHERE pg_has_role($l, j.role, 'USAGE') OR pg_has_role($l, 'pg_read_all_stats', 'USAGE')
				OR EXISTS (SELECT FROM pg_class c WHERE c.oid = m.table_oid AND pg_has_role($l, c.relowner, 'USAGE'))",
			tier_policy =>
				"SELECT count(*) FROM $schema.tier_policy p WHERE EXISTS (SELECT FROM pg_roles o WHERE o.rolname = p.owner
					AND pg_has_role($l, o.oid, 'USAGE'))",
			tier_policy_status =>
				"SELECT count(*) FROM $schema.tier_policy p WHERE pg_has_role($l, 'pg_monitor', 'USAGE') OR EXISTS (SELECT FROM pg_roles o
					WHERE o.rolname = p.owner AND pg_has_role($l, o.oid, 'USAGE'))");
		foreach my $view (sort keys %may)
		{
			my $what = $view =~ /^tier_policy/ ? 'count(*) AS job' : 'job';
			my $seen = $ask->("SET ROLE $r; SELECT string_agg(job::text, ',' ORDER BY job) FROM (SELECT $what
				FROM $schema.$view) v; RESET ROLE", 1);
			$ask->('RESET ROLE');
			next if ref $seen eq 'HASH';
			my $may = $ask->('SELECT string_agg(job::text, \',\' ORDER BY job) FROM (' . $may{$view} . ') AS v(job)', 1);
			next if ref $may eq 'HASH';
			my ($one, $two) = map { $_->[-1][0] // '' } $seen, $may;
			push @findings, [ 'view', "$role sees in $view: " . substr($one, 0, 300) . '; it may see: ' . substr($two, 0, 300) ]
				if $one ne $two;
		}
	}
	return @findings;
}

# What a plan says is what is done.
sub check_plan
{
	my ($ask, $r, $schema, $between) = @_;
	my @findings;
	foreach (1 .. 2)
	{
		my $space = literal($r->pick('pg_default', 'fz_a', 'fz_b', q{fz C'd}));
		my $relation = literal($r->pick('fz.d0', 'fz.d1', 'fz.d2', 'fz.d4', 'fz.rec0', 'fz.mat', 'fz.empty', 'fz.months',
			'"fz Other".parent', 'fz.d6', 'fz.d7', 'fz.d8', 'fz.kept'));
		my $call = $r->pick("move_table($relation, $space, indexes => true", "move_table($relation, $space",
			"move_indexes($relation, $space",
			"move_indexes($relation, $space, 'rebuild'", "evacuate_tablespace('fz_a', 'fz_b'");
		my $plan = $ask->("SELECT name, kind, status, coalesce(sqlstate, ''), coalesce(method, '') FROM $schema.$call, dry_run => true)
			ORDER BY 1, 2", 1);
		$between->($call) if $between;
		my $run = $ask->("SELECT name, kind, status, coalesce(sqlstate, ''), coalesce(method, ''), detail FROM $schema.$call)
			ORDER BY 1, 2", 1);
		if (ref $plan eq 'HASH' || ref $run eq 'HASH')
		{
			my ($p, $q) = map { ref $_ eq 'HASH' ? $_->{C} : 'no error' } $plan, $run;
			push @findings, [ 'plan', "$call): planned: $p, done: $q" ] if $p ne $q && $q ne '55000' && $q !~ /^(57|40|55006)/
				&& $p !~ /^(57|40|55006)/;
			next;
		}
		my %done = map { ("$_->[0]|$_->[1]" => $_) } @$run;
		foreach my $row (@$plan)
		{
			my $done = delete $done{"$row->[0]|$row->[1]"};
			my $as_planned = $done && ($row->[2] eq 'planned' ? $done->[2] eq 'moved' : $done->[2] eq $row->[2]
				&& $done->[3] eq $row->[3]);
			# a plan promises no luck
			$as_planned = 1 if $done && $done->[3] =~ /^(40P01|55P03|57014|57P0\d|53\d\d\d)$/;
			push @findings, [ 'plan', "$call): planned " . join('|', @$row) . '; done ' . join('|',
				map { $_ // '' } @{ $done // ['nothing'] }) ] unless $as_planned;
		}
		push @findings, [ 'plan', "$call): not in the plan: " . join('|', map { $_ // '' } @$_) ] for values %done;
	}
	return @findings;
}

# Each command that is printed parses, and a superuser can run it.
sub check_commands
{
	my ($ask, $schema, $told) = @_;
	my @findings;
	my %command = %$told;
	foreach my $query ("SELECT command FROM $schema.index_mover_check('0 s')",
		"SELECT action FROM $schema.index_mover_blockers(NULL, '0 s')",
		"SELECT command FROM $schema.recommend_moves('fz_b')", "SELECT action FROM $schema.index_mover_cleanup(true)",
		"SELECT message FROM $schema.index_mover_history WHERE message IS NOT NULL ORDER BY job DESC LIMIT 30")
	{
		my $rows = $ask->($query, 1);
		next if ref $rows eq 'HASH';
		foreach my $text (map { $_->[0] // '' } @$rows)
		{
			$command{$_} = 1 for commands_in($text);
		}
	}
	foreach my $command (sort keys %command)
	{
		my $bare = $command =~ s/;\s*$//r;
		# (PL/pgSQL takes its first word for a statement of its own)
		next if $bare =~ /^ROLLBACK PREPARED '(?:[^']|'')+'$/;
		my $answer = $ask->("DO \$fuzz\$BEGIN IF false THEN $bare; END IF; END\$fuzz\$", 1);
		$answer = [] if ref $answer eq 'HASH' && $answer->{C} =~ /^(57|08|0A000|42P13)/;
		if (ref $answer eq 'HASH')
		{
			push @findings, [ 'command', "does not parse: $command ($answer->{C}: $answer->{M})" ];
			next;
		}
		next if $command =~ /terminate|prepared|drop_|DROP|PREPARED/;
		$answer = $ask->($bare, 1);
		# what it is about may be gone; its syntax and its names may not be wrong
		push @findings, [ 'command', "a superuser cannot run: $command ($answer->{C}: $answer->{M})" ]
		  if ref $answer eq 'HASH' && $answer->{C} =~ /^(42601|42883|42703|3F000|42501|XX|22P02|42846|42725)/;
	}
	return @findings;
}

# The commands in a text: it is one, or they stand behind a colon, or "or".
sub commands_in
{
	my ($text) = @_;
	my $begin = qr/(?:SELECT|CALL|ALTER|DROP|REINDEX|VACUUM|UPDATE|COMMIT|ROLLBACK|CREATE|ANALYZE)\s/;
	my @commands;
	foreach my $piece (split /(?:^|: |\bor )(?=$begin)/, $text)
	{
		next unless $piece =~ /^$begin/;
		# to the semicolon
		($piece) = $piece =~ /^((?:[^;'"]|'(?:[^']|'')*'|"(?:[^"]|"")*")*)/;
		$piece =~ s/,? or $//;
		$piece =~ s/[.,]? *\z//;
		$piece =~ s/\. [A-Z].*//s;
		# an ellipsis is for the reader to fill in
		push @commands, $piece unless $piece =~ /\.\./ || $piece =~ /^[A-Z ]*$/;
	}
	return @commands;
}

1;
