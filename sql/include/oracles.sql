-- oracles.sql
--   What tells whether an index is right, shared by all kinds of tests.
--
-- Load it as superuser with \ir (psql) or IndexMover::Test (TAP).  Everything
-- is in schema "oracle"; t/001_oracles.pl shows for each oracle what it catches.
--
--   oracle.lookup(index)           look every key up, compare both ways
--   oracle.structure(index)        amcheck
--   oracle.verdict(table)          both of them, for all indexes of a table
--   oracle.examine(table)          the same, and how much was compared
--   oracle.remember_keys(table)    so that lost deletions can be seen
--   oracle.files()                 orphaned and missing files of this database
--   oracle.leftovers()             what a move may have left in the catalogs
--   oracle.metadata(table)         all that the catalogs say about its indexes
--   oracle.remember_metadata(table), oracle.metadata_changes(table)

CREATE SCHEMA oracle;
CREATE EXTENSION IF NOT EXISTS amcheck WITH SCHEMA oracle;

---------------------------------------------------------------------------
-- Lookup, both ways
--
-- For each key that is in the table, or was when oracle.remember_keys() ran,
-- the rows that come through the index must be exactly those that a scan of
-- the whole table finds.  Three ways to be wrong:
--   missing     in the table, not found through the index
--   extra       found through the index, not by the scan
--   wrong_key   the index led to a row that has not the key asked for
-- Comparing numbers of rows is not enough: an index full of pointers to reused
-- row slots can have the right number.  amcheck sees neither extra nor
-- wrong_key.
--
-- The other indexes of the table are hidden from the planner meanwhile, in a
-- subtransaction that is rolled back (impossible on a standby).  The run is
-- void, and raises an error, unless EXPLAIN shows that this index, and no
-- other, answers in the way that is tested.
--
-- Where the keys divide the rows ("=", on a type that can be hashed) every key is
-- asked for, whatever max_keys says, and number and sum of hashes of what came
-- back are compared with those of the scan: no sort, no join, some seconds for a
-- million keys.  If they differ, or a row came that was not asked for, rows are
-- compared, to tell what is wrong.  Elsewhere rows are compared from the
-- beginning; where the operator cannot be hashed that is a nested loop, so 200
-- keys must do if max_keys does not say otherwise.
--
-- Keys that are not known any more cannot be asked for; so a btree is also read from
-- one end to the other ("full scan"), where an entry too many gives a row twice.
--
-- A search in a BRIN index reads many blocks.  Where it keeps minimum and maximum,
-- those of each block of the table are asked for: a summary that lacks any key of
-- its blocks lacks one of these.  A large table is asked for ranges of keys, that
-- together are all of them; "ranges" says how many.
---------------------------------------------------------------------------

-- One row a key column: its expression; the operator to ask with, which is "="
-- where the operator class has it; and what to ask for, %s being the value.
CREATE FUNCTION oracle.key_columns(index regclass)
RETURNS TABLE (n int, expr text, op text, ask text, searches_nulls bool, hashable bool, divides bool)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT g.n, '(' || pg_get_indexdef(index, g.n, false) || ')',
		   format('OPERATOR(%I.%s)', o.nspname, o.oprname),
		   CASE WHEN o.oprname = '@@'
				THEN 'quote_literal((tsvector_to_array(%s))[1])::tsquery' ELSE '%s' END
		   || coalesce(' COLLATE ' || quote_ident(cn.nspname) || '.' || quote_ident(co.collname), ''),
		   -- 17 and later do not ask the index for a null that cannot be
		   pg_index_column_has_property(index, g.n, 'search_nulls')
		   AND NOT EXISTS (SELECT FROM pg_attribute a
							WHERE a.attrelid = x.indrelid AND a.attnum = x.indkey[g.n - 1] AND a.attnotnull),
		   o.oprcanhash, o.oprcanhash AND o.oprname = '='
	  FROM pg_index x
	 CROSS JOIN generate_series(1, x.indnkeyatts) AS g(n)
	  JOIN pg_opclass c ON c.oid = x.indclass[g.n - 1]
	  LEFT JOIN pg_collation co ON co.oid = x.indcollation[g.n - 1]
	  LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
	 CROSS JOIN LATERAL (
			SELECT ns.nspname, po.oprname, po.oprcanhash
			  FROM pg_amop ao
			  JOIN pg_operator po ON po.oid = ao.amopopr
			  JOIN pg_namespace ns ON ns.oid = po.oprnamespace
			 WHERE ao.amopfamily = c.opcfamily AND ao.amoppurpose = 's'
			   AND ao.amoplefttype = c.opcintype
			   AND po.oprname IN ('=', '~=', '@>', '@@')
			   AND ao.amoprighttype IN (c.opcintype, 'tsquery'::regtype)
			 ORDER BY array_position(ARRAY['=', '~=', '@>', '@@'], po.oprname::text)
			 LIMIT 1) o
	 WHERE x.indexrelid = index
	 ORDER BY g.n
$$;

-- Keep the keys that the table's indexes have now.
CREATE FUNCTION oracle.remember_keys(rel regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	x	record;
BEGIN
	FOR x IN SELECT c.relname AS name,
					pg_get_expr(i.indpred, i.indrelid) AS pred,
					(SELECT string_agg(format('%s AS a%s', k.expr, k.n), ', ' ORDER BY k.n)
					   FROM oracle.key_columns(i.indexrelid) k) AS keys
			   FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
			  WHERE i.indrelid = rel
	LOOP
		EXECUTE format('CREATE TABLE IF NOT EXISTS oracle.%I AS SELECT %s FROM %s WHERE false',
					   'old ' || x.name, x.keys, rel);
		EXECUTE format('INSERT INTO oracle.%I SELECT %s FROM %s WHERE %s',
					   'old ' || x.name, x.keys, rel, coalesce(x.pred, 'true'));
	END LOOP;
END
$$;

-- Raise an error unless the query is answered with exactly one scan of an index,
-- of this one, and of this type.
CREATE FUNCTION oracle.check_plan(query text, way text, node text, index_name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	plan	jsonb;
BEGIN
	EXECUTE 'EXPLAIN (COSTS OFF, FORMAT JSON) ' || query INTO plan;
	IF (SELECT count(*) <> 1 OR bool_or(p->>'Index Name' <> index_name OR p->>'Node Type' <> node)
		  FROM jsonb_path_query(plan, 'strict $.** ? (exists (@."Index Name"))') AS p) THEN
		RAISE 'oracle.lookup is void: not answered by % of %', way, index_name USING DETAIL = plan;
	END IF;
END
$$;

CREATE FUNCTION oracle.lookup(index regclass, max_keys bigint DEFAULT NULL, ranges int DEFAULT NULL)
RETURNS TABLE (way text, keys bigint, missing bigint, extra bigint, wrong_key bigint, compared bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_memoize = off
SET enable_material = off
SET enable_tidscan = on
SET jit = off
SET max_parallel_workers_per_gather = 0
SET row_security = off
AS $$
DECLARE
	x		record;
	pattern	record;
	query	text;
	results	jsonb := '[]';
	node	text;
	old		text;
	hashable bool;
	divides	bool;
	by_page	bool;
	sums	record;
	k_query	text;
	asked	text;
	compared_rows text;
	in_order text;
BEGIN
	SELECT i.indrelid::regclass AS rel, c.relname AS name, i.indnkeyatts AS nkeys,
		   coalesce(pg_get_expr(i.indpred, i.indrelid), 'true') AS pred,
		   i.indexprs IS NULL AND i.indpred IS NULL AS plain,
		   a.amname AS am
	  INTO STRICT x
	  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
	 WHERE i.indexrelid = index;
	SELECT format('%s USING OPERATOR(%I.%s) NULLS %s', pg_get_indexdef(index, 1, false)
				  || coalesce(' COLLATE ' || quote_ident(cn.nspname) || '.' || quote_ident(co.collname), ''),
				  ns.nspname, o.oprname, CASE WHEN p.nulls_first THEN 'FIRST' ELSE 'LAST' END)
	  INTO in_order
	  FROM (SELECT pg_index_column_has_property(index, 1, 'desc') AS reverse,
				   pg_index_column_has_property(index, 1, 'nulls_first') AS nulls_first) p
	 CROSS JOIN pg_index i
	  JOIN pg_opclass c ON c.oid = i.indclass[0]
	  JOIN pg_amop ao ON ao.amopfamily = c.opcfamily AND ao.amoppurpose = 's'
					 AND ao.amoplefttype = c.opcintype AND ao.amoprighttype = c.opcintype
					 AND ao.amopstrategy = CASE WHEN p.reverse THEN 5 ELSE 1 END
	  JOIN pg_operator o ON o.oid = ao.amopopr
	  JOIN pg_namespace ns ON ns.oid = o.oprnamespace
	  LEFT JOIN pg_collation co ON co.oid = i.indcollation[0]
	  LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
	 WHERE i.indexrelid = index AND x.am = 'btree';
	IF ranges IS NULL AND x.am = 'brin' AND x.nkeys = 1 AND pg_relation_size(x.rel) > 16777216 THEN
		ranges := 1000;
	END IF;
	IF (SELECT count(*) FROM oracle.key_columns(index)) <> x.nkeys THEN
		RAISE 'oracle.lookup: no operator known to ask index % with', index;
	END IF;
	IF to_regclass(format('oracle.%I', 'old ' || x.name)) IS NOT NULL THEN
		SELECT format('UNION ALL SELECT %s FROM oracle.%I', string_agg('a' || k.n, ', ' ORDER BY k.n), 'old ' || x.name)
		  INTO old FROM oracle.key_columns(index) k;
	END IF;
	SELECT bool_and(k.hashable), bool_and(k.divides) INTO hashable, divides FROM oracle.key_columns(index) k;
	by_page := ranges IS NULL AND x.nkeys = 1 AND x.plain AND EXISTS (SELECT FROM pg_index i JOIN pg_opclass c ON c.oid = i.indclass[0]
		WHERE i.indexrelid = index AND c.opcname LIKE '%\_minmax\_ops');

	BEGIN
		IF NOT pg_is_in_recovery() THEN
			UPDATE pg_index SET indisvalid = false
			 WHERE indrelid = x.rel AND indexrelid <> index AND indisvalid;
		END IF;

		IF in_order IS NOT NULL THEN
			PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_indexonlyscan', 'off', true),
					set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true);
			query := format($q$
				SELECT s.n, s.n = i.n AND s.h IS NOT DISTINCT FROM i.h AS same
				  FROM (SELECT count(*) AS n, sum(hashtidextended(tid, 0)) AS h
						  FROM (SELECT ctid AS tid FROM ONLY %1$s WHERE %2$s ORDER BY %3$s OFFSET 0) m) i,
					   (SELECT count(*) AS n, sum(hashtidextended(tid, 0)) AS h FROM (
							SELECT tid FROM (SELECT ctid AS tid, * FROM ONLY %1$s WHERE ctid >= '(0,0)' OFFSET 0) t WHERE %2$s) m) s
				$q$, x.rel, x.pred, in_order);
			PERFORM oracle.check_plan(query, 'full scan', 'Index Scan', x.name);
			EXECUTE query INTO sums;
			compared := sums.n;
			IF NOT sums.same THEN
				EXECUTE format($q$
					WITH i AS MATERIALIZED (SELECT ctid AS tid FROM ONLY %1$s WHERE %2$s ORDER BY %3$s),
					s AS MATERIALIZED (
						SELECT tid FROM (SELECT ctid AS tid, * FROM ONLY %1$s WHERE ctid >= '(0,0)' OFFSET 0) t WHERE %2$s)
					SELECT (SELECT count(*) FROM (TABLE s EXCEPT ALL TABLE i) e), (SELECT count(*) FROM (TABLE i EXCEPT ALL TABLE s) e)
					$q$, x.rel, x.pred, in_order) INTO missing, extra;
			ELSE
				missing := 0;
				extra := 0;
			END IF;
			results := results || jsonb_build_object('way', 'full scan', 'keys', 0, 'missing', missing, 'extra', extra, 'wrong_key', 0, 'compared', compared);
			PERFORM set_config('enable_sort', 'on', true);
		END IF;

		FOREACH way IN ARRAY ARRAY['index scan', 'index-only scan', 'bitmap scan'] LOOP
			CONTINUE WHEN way = 'index scan' AND NOT pg_index_has_property(index, 'index_scan');
			CONTINUE WHEN way = 'bitmap scan' AND NOT pg_index_has_property(index, 'bitmap_scan');
			CONTINUE WHEN way = 'index-only scan'
				AND NOT (x.plain AND (SELECT bool_and(pg_index_column_has_property(index, k.n, 'returnable'))
										FROM oracle.key_columns(index) k));
			PERFORM set_config('enable_indexscan', CASE WHEN way = 'bitmap scan' THEN 'off' ELSE 'on' END, true),
					set_config('enable_indexonlyscan', CASE WHEN way = 'index-only scan' THEN 'on' ELSE 'off' END, true),
					set_config('enable_bitmapscan', CASE WHEN way = 'bitmap scan' THEN 'on' ELSE 'off' END, true);
			node := CASE way WHEN 'index scan' THEN 'Index Scan'
							 WHEN 'index-only scan' THEN 'Index Only Scan'
							 ELSE 'Bitmap Index Scan' END;

			-- Each combination of null and not-null keys is asked for in its own
			-- way; not the ones that the access method cannot look for.
			FOR pattern IN
				SELECT string_agg(format('a%s', k.n), ', ' ORDER BY k.n) AS names,
					   string_agg(format('%s AS a%s', k.expr, k.n), ', ' ORDER BY k.n) AS keys,
					   string_agg(format('a%s::text', k.n), ', ' ORDER BY k.n) AS texts,
					   string_agg(format('gt.a%s::text', k.n), ', ' ORDER BY k.n) AS gt_texts,
					   string_agg(format('a%s IS %s NULL', k.n, CASE WHEN p.bits >> (k.n - 1) & 1 = 1 THEN '' ELSE 'NOT' END),
								  ' AND ' ORDER BY k.n) AS chosen,
					   string_agg(CASE WHEN p.bits >> (k.n - 1) & 1 = 1 THEN format('%s IS NULL', k.expr)
									   ELSE format('%s %s %s', k.expr, k.op, format(k.ask, 'k.a' || k.n)) END,
								  ' AND ' ORDER BY k.n) AS by_index,
					   string_agg(CASE WHEN p.bits >> (k.n - 1) & 1 = 1 THEN format('gt.a%s IS NULL', k.n)
									   ELSE format('gt.a%s %s %s', k.n, k.op, format(k.ask, 'k.a' || k.n)) END,
								  ' AND ' ORDER BY k.n) AS by_scan
				  FROM generate_series(0, (1 << x.nkeys) - 1) AS p(bits)
				 CROSS JOIN oracle.key_columns(index) k
				 GROUP BY p.bits
				HAVING bool_and(k.searches_nulls OR p.bits >> (k.n - 1) & 1 = 0)
			LOOP
				IF divides THEN
					-- what to ask for: all keys, or ranges of them
					k_query := format($q$SELECT DISTINCT %1$s FROM (SELECT %1$s FROM (
							SELECT %2$s FROM (SELECT * FROM ONLY %3$s WHERE ctid >= '(0,0)' OFFSET 0) t WHERE %4$s) gt %5$s) u WHERE %6$s$q$,
						pattern.names, pattern.keys, x.rel, x.pred, old, pattern.chosen);
					asked := pattern.by_index;
					compared_rows := pattern.chosen;
					IF by_page AND pattern.chosen LIKE '%NOT NULL' THEN
						compared_rows := pattern.chosen || ' AND a1 IN (SELECT k.a1 FROM k)';
						k_query := format($q$SELECT DISTINCT a1 FROM (
								SELECT a1, row_number() OVER (PARTITION BY page ORDER BY a1) AS up, row_number() OVER (PARTITION BY page ORDER BY a1 DESC) AS down
								  FROM (SELECT trunc((ctid::text::point)[0]) AS page, %1$s
										  FROM (SELECT ctid, * FROM ONLY %2$s WHERE ctid >= '(0,0)' OFFSET 0) t WHERE %3$s) p WHERE %4$s) e
							WHERE 1 IN (up, down)$q$, pattern.keys, x.rel, x.pred, pattern.chosen);
					END IF;
					IF ranges IS NOT NULL AND pattern.chosen LIKE '%NOT NULL' THEN
						k_query := format('SELECT min(a1) AS lo, max(a1) AS hi FROM (SELECT a1, ntile(%s) OVER (ORDER BY a1) AS n FROM (%s) d) r GROUP BY n',
							ranges, k_query);
						SELECT format('%1$s OPERATOR(pg_catalog.>=) k.lo AND %1$s OPERATOR(pg_catalog.<=) k.hi', c.expr)
						  INTO asked FROM oracle.key_columns(index) c;
					END IF;
					query := format($q$
						WITH k AS MATERIALIZED (%1$s)
						SELECT (SELECT count(*) FROM k) AS keys, s.n, s.n = i.n AND s.h IS NOT DISTINCT FROM i.h AND i.wrong = 0 AS same
						  FROM (SELECT count(*) AS n, sum(%2$s) AS h
								  FROM (SELECT tid, %3$s FROM (SELECT ctid AS tid, * FROM ONLY %4$s WHERE ctid >= '(0,0)' OFFSET 0) t WHERE %5$s) m
								 WHERE %6$s) s,
							   (SELECT count(*) AS n, sum(%2$s) AS h, count(*) FILTER (WHERE asked IS NOT TRUE) AS wrong
								  FROM k CROSS JOIN LATERAL (
									SELECT %7$s, (%8$s) AS asked FROM ONLY %4$s WHERE %8$s AND %5$s OFFSET 0) m) i
						$q$,
						k_query,
						CASE WHEN way = 'index-only scan' THEN format('hash_record_extended(ROW(%s), 0)', regexp_replace(pattern.names, '\ma', 'm.a', 'g'))
							 ELSE 'hashtidextended(m.tid, 0)' END,
						pattern.keys, x.rel, x.pred,
						compared_rows,
						CASE WHEN way = 'index-only scan' THEN pattern.keys ELSE 'ctid AS tid' END,
						asked);
					PERFORM oracle.check_plan(query, way, node, x.name);
					EXECUTE query INTO sums;
					IF sums.same THEN
						results := results || jsonb_build_object('way', way, 'keys', sums.keys, 'missing', 0, 'extra', 0, 'wrong_key', 0, 'compared', sums.n);
						CONTINUE;
					END IF;
				END IF;

				query := format($q$
					WITH gt AS MATERIALIZED (
						SELECT tid, %1$s FROM (SELECT ctid AS tid, * FROM ONLY %2$s WHERE ctid >= '(0,0)' OFFSET 0) t WHERE %3$s),
					k AS MATERIALIZED (
						SELECT row_number() OVER () AS n, d.*
						  FROM (SELECT DISTINCT ON (%4$s) %5$s FROM (SELECT %5$s FROM gt %6$s) u WHERE %7$s LIMIT %8$s) d),
					by_scan AS MATERIALIZED (
						SELECT k.n, %9$s FROM k JOIN gt ON %10$s),
					by_index AS MATERIALIZED (
						SELECT k.n, m.* FROM k CROSS JOIN LATERAL (
							SELECT %11$s, (%12$s) AS asked FROM ONLY %2$s WHERE %12$s AND %3$s OFFSET 0) m)
					SELECT (SELECT count(*) FROM k),
						   (SELECT count(*) FROM (TABLE by_scan EXCEPT ALL SELECT %13$s FROM by_index) e),
						   (SELECT count(*) FROM (SELECT %13$s FROM by_index EXCEPT ALL TABLE by_scan) e),
						   (SELECT count(*) FROM by_index WHERE asked IS NOT TRUE),
						   (SELECT count(*) FROM by_scan)
					$q$,
					pattern.keys, x.rel, x.pred, pattern.texts, pattern.names, old, pattern.chosen,
					CASE WHEN divides THEN 'ALL' ELSE coalesce(max_keys::text, CASE WHEN hashable THEN 'ALL' ELSE '200' END) END,
					CASE WHEN way = 'index-only scan' THEN pattern.gt_texts ELSE 'gt.tid' END,
					pattern.by_scan,
					CASE WHEN way = 'index-only scan'
						 THEN (SELECT string_agg(format('%s::text AS i%s', k.expr, k.n), ', ' ORDER BY k.n) FROM oracle.key_columns(index) k)
						 ELSE 'ctid AS tid' END,
					pattern.by_index,
					CASE WHEN way = 'index-only scan'
						 THEN 'n, ' || (SELECT string_agg('i' || k.n, ', ' ORDER BY k.n) FROM oracle.key_columns(index) k)
						 ELSE 'n, tid' END);

				PERFORM oracle.check_plan(query, way, node, x.name);
				EXECUTE query INTO keys, missing, extra, wrong_key, compared;
				results := results || jsonb_build_object('way', way, 'keys', keys, 'missing', missing, 'extra', extra, 'wrong_key', wrong_key, 'compared', compared);
			END LOOP;
		END LOOP;
		RAISE SQLSTATE 'ORCLE';
	EXCEPTION WHEN SQLSTATE 'ORCLE' THEN
		NULL;					-- the hidden indexes are back
	END;

	IF results = '[]' THEN
		RAISE 'oracle.lookup is void: no way to use index %', index;
	END IF;
	RETURN QUERY
		SELECT r.way, sum(r.keys)::bigint, sum(r.missing)::bigint, sum(r.extra)::bigint, sum(r.wrong_key)::bigint,
			   sum(r.compared)::bigint
		  FROM jsonb_to_recordset(results) AS r(way text, keys bigint, missing bigint, extra bigint, wrong_key bigint, compared bigint)
		 GROUP BY r.way ORDER BY r.way;
END
$$;

---------------------------------------------------------------------------
-- amcheck, for btrees: nothing missing, structure right, and from 17 on no key
-- twice in a unique index; from 18 on, the structure of GIN.  "parent" locks
-- writers out and looks closer.
---------------------------------------------------------------------------
CREATE FUNCTION oracle.structure(index regclass, parent bool DEFAULT true) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	am		name := (SELECT a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.oid = index);
	version	int[] := (SELECT string_to_array(e.extversion, '.')::int[] FROM pg_extension e WHERE e.extname = 'amcheck');
BEGIN
	IF am = 'gin' AND version >= '{1,5}' THEN
		PERFORM oracle.gin_index_check(index);
	END IF;
	IF am <> 'btree' THEN
		RETURN;
	END IF;
	parent := parent AND NOT pg_is_in_recovery();
	IF parent AND version >= '{1,4}' THEN
		PERFORM oracle.bt_index_parent_check(index, true, true, true);
	ELSIF parent THEN
		PERFORM oracle.bt_index_parent_check(index, true, true);
	ELSIF version >= '{1,4}' THEN
		PERFORM oracle.bt_index_check(index, true, true);
	ELSE
		PERFORM oracle.bt_index_check(index, true);
	END IF;
END
$$;

-- In one line: how many indexes of the table (or all leaves of the partitioned
-- table) are right, and what is wrong with the others.  Beside it, how many keys
-- were looked up, rows compared both ways, and rows wrong.
CREATE FUNCTION oracle.examine(rel regclass, max_keys bigint DEFAULT NULL,
							   OUT verdict text, OUT keys bigint, OUT compared bigint, OUT wrong bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	x		regclass;
	l		record;
	n_right	int := 0;
	others	text := '';
	problem	text;
BEGIN
	keys := 0;
	compared := 0;
	wrong := 0;
	FOR x IN SELECT i.indexrelid::regclass
			   FROM (SELECT rel AS relid
					 UNION SELECT p.relid FROM pg_partition_tree(rel) p WHERE p.isleaf) t
			   JOIN pg_index i ON i.indrelid = t.relid
			   JOIN pg_class c ON c.oid = i.indexrelid AND c.relkind = 'i'
			  WHERE i.indisvalid
			  ORDER BY c.relname
	LOOP
		problem := NULL;
		BEGIN
			PERFORM oracle.structure(x);
			FOR l IN SELECT * FROM oracle.lookup(x, max_keys) LOOP
				keys := keys + l.keys;
				compared := compared + l.compared;
				wrong := wrong + l.missing + l.extra + l.wrong_key;
				IF l.missing + l.extra + l.wrong_key > 0 THEN
					problem := coalesce(problem || ', ', '') ||
						format('%s: missing %s, extra %s, wrong key %s', l.way, l.missing, l.extra, l.wrong_key);
				END IF;
			END LOOP;
		EXCEPTION WHEN OTHERS THEN
			problem := SQLSTATE || ' ' || SQLERRM;
		END;
		IF problem IS NULL THEN
			n_right := n_right + 1;
		ELSE
			others := others || format('; %s: %s', x, problem);
		END IF;
	END LOOP;
	verdict := CASE WHEN n_right + length(others) = 0 THEN 'nothing to check'
					WHEN keys = 0 AND others = '' THEN format('%s right, no keys', n_right)
					ELSE format('%s right%s', n_right, others) END;
END
$$;

CREATE FUNCTION oracle.verdict(rel regclass, max_keys bigint DEFAULT NULL) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
	SELECT e.verdict FROM oracle.examine(rel, max_keys) e
$$;

---------------------------------------------------------------------------
-- Files: every file of this database has a catalog entry, and every catalog
-- entry its file.  A dropped file's first segment stays, empty, until the next
-- checkpoint, so this does one.  A standby has only the initialization fork of
-- what is unlogged.
---------------------------------------------------------------------------
CREATE FUNCTION oracle.files(OUT problem text, OUT path text, OUT size bigint) RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	dir	text;
BEGIN
	CHECKPOINT;
	FOR dir IN SELECT 'base/' || d.oid FROM pg_database d WHERE d.datname = current_database()
			   UNION ALL
			   SELECT format('pg_tblspc/%s/%s/%s', t.oid, v.name, d.oid)
				 FROM pg_tablespace t
				CROSS JOIN LATERAL pg_ls_dir('pg_tblspc/' || t.oid, true, false) AS v(name)
				 JOIN pg_database d ON d.datname = current_database()
				WHERE t.spcname NOT IN ('pg_default', 'pg_global') AND v.name LIKE 'PG\_%'
	LOOP
		RETURN QUERY
			SELECT 'orphan', dir || '/' || f.name, s.size
			  FROM pg_ls_dir(dir, true, false) AS f(name)
			 CROSS JOIN LATERAL pg_stat_file(dir || '/' || f.name, true) s
			 WHERE f.name ~ '^(t[0-9]+_)?[0-9]+(_(fsm|vm|init))?(\.[0-9]+)?$'
			   AND s.size IS NOT NULL
			   AND NOT EXISTS (
					SELECT FROM pg_class c
					 WHERE pg_relation_filepath(c.oid) = dir || '/' || regexp_replace(f.name, '(_(fsm|vm|init))?(\.[0-9]+)?$', ''))
			   -- a session may have dropped or created it just now
			   AND (SELECT s2.size FROM pg_stat_file(dir || '/' || f.name, true) s2) IS NOT NULL;
	END LOOP;
	RETURN QUERY
		SELECT 'missing', f.path, NULL::bigint
		  FROM pg_class c
		 CROSS JOIN LATERAL (VALUES
			(pg_relation_filepath(c.oid)
			 || CASE WHEN c.relpersistence = 'u' AND pg_is_in_recovery() THEN '_init' ELSE '' END)) AS f(path)
		 WHERE f.path IS NOT NULL
		   AND c.relpersistence <> 't'
		   AND (SELECT s.size FROM pg_stat_file(f.path, true) s) IS NULL;
	RETURN QUERY
		SELECT 'no such tablespace', c.oid::regclass::text, NULL::bigint
		  FROM pg_class c
		 WHERE c.reltablespace <> 0
		   AND NOT EXISTS (SELECT FROM pg_tablespace t WHERE t.oid = c.reltablespace);
END
$$;

---------------------------------------------------------------------------
-- Leftovers: what a move may leave in the catalogs and in shared memory
---------------------------------------------------------------------------
-- Empty a table, and put it, its TOAST table and the index of that into different
-- tablespaces, as an earlier version could leave them: no command of core does.  The
-- files are exchanged with those of other empty tables.
CREATE PROCEDURE oracle.mix(rel regclass, VARIADIC places name[])
LANGUAGE plpgsql AS $$
DECLARE
	kind	text;
BEGIN
	EXECUTE format('TRUNCATE %s', rel);
	EXECUTE format('ALTER TABLE %s SET TABLESPACE %I', rel, places[1]);
	COMMIT;
	FOREACH kind IN ARRAY ARRAY['t', 'i'] LOOP
		EXECUTE format('CREATE TABLE oracle.donor (t text) TABLESPACE %I', places[CASE kind WHEN 't' THEN 2 ELSE 3 END]);
		COMMIT;
		WITH parts AS (
			SELECT c.oid AS of, p.*
			  FROM pg_class c JOIN pg_index i ON i.indrelid = c.reltoastrelid
			  JOIN pg_class p ON p.oid IN (i.indrelid, i.indexrelid) AND p.relkind = kind::"char"
			 WHERE c.oid IN (rel, 'oracle.donor'::regclass))
		UPDATE pg_class c SET relfilenode = other.relfilenode, reltablespace = other.reltablespace
		  FROM parts p JOIN parts other ON other.of <> p.of
		 WHERE c.oid = p.oid;
		COMMIT;
		DROP TABLE oracle.donor;
		COMMIT;
	END LOOP;
END
$$;

CREATE FUNCTION oracle.leftovers_now(OUT kind text, OUT object text) RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	ext	text;
BEGIN
	RETURN QUERY
		SELECT 'index not valid', c.oid::regclass::text
		  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		 WHERE c.relkind = 'i' AND NOT (i.indisvalid AND i.indisready AND i.indislive)
		 UNION ALL
		SELECT 'name', c.oid::regclass::text
		  FROM pg_class c
		 WHERE c.relname ~ '_cc(new|old)[0-9]*$'
		 UNION ALL
		SELECT 'process', a.backend_type || coalesce(': ' || a.query, '')
		  FROM pg_stat_activity a
		 WHERE a.backend_type LIKE 'index\_mover%' AND a.backend_type NOT LIKE '%launcher%'
		   AND a.datname = current_database()
		 UNION ALL
		SELECT 'lock', format('%s %s pid %s', l.locktype, l.mode, l.pid)
		  FROM pg_locks l
		 WHERE l.locktype = 'advisory' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
		 UNION ALL
		SELECT 'replication slot', s.slot_name::text
		  FROM pg_replication_slots s
		 WHERE s.slot_name LIKE 'index\_mover%'
		 UNION ALL
		SELECT 'build', format('pid %s, phase %s', p.pid, p.phase)
		  FROM pg_stat_progress_create_index p
		 WHERE p.datname = current_database()
		 UNION ALL
		-- core keeps them together
		SELECT 'apart from its table', p.oid::regclass::text
		  FROM pg_class c LEFT JOIN pg_index i ON i.indrelid = c.reltoastrelid
		  JOIN pg_class p ON p.oid IN (c.reltoastrelid, i.indexrelid)
		 WHERE p.reltablespace <> c.reltablespace;
	SELECT n.nspname INTO ext
	  FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
	 WHERE e.extname = 'index_mover';
	IF FOUND THEN
		RETURN QUERY EXECUTE
			'SELECT ''ledger row'', format(''kind %s, index %s, new index %s, file %s'', l.kind, l.relation, l.new_index, l.relfilenumber)
			   FROM index_mover.ledger l';
		RETURN QUERY EXECUTE format(
			'SELECT %L, format(%L, h.job, h.name, h.status) FROM %I.index_mover_history h WHERE h.status IN (%L, %L, %L)',
			'history', 'job %s, index %s, %s', ext, 'queued', 'running', 'paused');
		RETURN QUERY EXECUTE format(
			'SELECT %L, format(%L, p.pid, p.phase) FROM %I.index_mover_progress p',
			'progress', 'pid %s, %s', ext);
	END IF;
END
$$;

-- A process that is just exiting is no leftover: look again for a moment.
CREATE FUNCTION oracle.leftovers(within interval DEFAULT '2 s', OUT kind text, OUT object text) RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + within;
BEGIN
	WHILE EXISTS (SELECT FROM oracle.leftovers_now()) AND clock_timestamp() < deadline LOOP
		PERFORM pg_sleep(0.02), pg_stat_clear_snapshot();
	END LOOP;
	RETURN QUERY SELECT * FROM oracle.leftovers_now();
END
$$;

---------------------------------------------------------------------------
-- Metadata: what the catalogs say about the indexes of a table, by index name,
-- with names in place of the numbers that a rebuild changes.
---------------------------------------------------------------------------
CREATE FUNCTION oracle.metadata(rel regclass)
RETURNS TABLE (index_name name, attribute text, value text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	WITH x AS (
		SELECT i.*, c.relname, c.relnamespace, c.relowner, c.relam, c.reltablespace, c.relpersistence,
			   c.relkind, c.relnatts, c.relhassubclass, c.relispartition, c.reloptions, c.relacl
		  FROM (SELECT rel AS relid UNION SELECT p.relid FROM pg_partition_tree(rel) p) t
		  JOIN pg_index i ON i.indrelid = t.relid
		  JOIN pg_class c ON c.oid = i.indexrelid)
	SELECT x.relname, a.attribute, a.value
	  FROM x
	 CROSS JOIN LATERAL (VALUES
		('definition', pg_get_indexdef(x.indexrelid)),
		('table', x.indrelid::regclass::text),
		('schema', x.relnamespace::regnamespace::text),
		('owner', x.relowner::regrole::text),
		('access method', (SELECT amname::text FROM pg_am WHERE oid = x.relam)),
		('tablespace', coalesce((SELECT spcname::text FROM pg_tablespace WHERE oid = x.reltablespace), '')),
		('persistence', x.relpersistence::text),
		('kind', x.relkind::text),
		('options', x.reloptions::text),
		('acl', x.relacl::text),
		('is partition', x.relispartition::text),
		('has children', x.relhassubclass::text),
		('attributes', x.indnatts || '/' || x.indnkeyatts || '/' || x.relnatts),
		('unique', x.indisunique::text),
		('nulls not distinct', x.indnullsnotdistinct::text),
		('primary', x.indisprimary::text),
		('exclusion', x.indisexclusion::text),
		('immediate', x.indimmediate::text),
		('clustered', x.indisclustered::text),
		('valid, ready, live', x.indisvalid || ', ' || x.indisready || ', ' || x.indislive),
		('replica identity', x.indisreplident::text),
		('columns', x.indkey::text),
		('collations', x.indcollation::text),
		('operator classes', x.indclass::text),
		('column options', x.indoption::text),
		('expressions', pg_get_expr(x.indexprs, x.indrelid)),
		('predicate', pg_get_expr(x.indpred, x.indrelid)),
		('column names, types, statistics targets',
			(SELECT string_agg(format('%s %s %s %s', att.attname, format_type(att.atttypid, att.atttypmod),
									  att.attstattarget, att.attoptions), ', ' ORDER BY att.attnum)
			   FROM pg_attribute att WHERE att.attrelid = x.indexrelid)),
		('statistics of expressions',
			(SELECT md5(string_agg(format('%s %s %s %s %s %s', s.staattnum, s.stainherit, s.stanullfrac, s.stawidth,
										  s.stadistinct, (to_jsonb(s) - 'starelid')::text), ' ' ORDER BY s.staattnum))
			   FROM pg_statistic s WHERE s.starelid = x.indexrelid)),
		('comment', obj_description(x.indexrelid, 'pg_class')),
		('security labels',
			(SELECT string_agg(l.provider || ' ' || l.label, ', ' ORDER BY l.provider)
			   FROM pg_seclabel l WHERE l.classoid = 'pg_class'::regclass AND l.objoid = x.indexrelid)),
		('depends on',
			(SELECT string_agg(d.deptype::text || ' ' || pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid) || ' ' || d.objsubid,
							   ', ' ORDER BY d.deptype, pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid), d.objsubid)
			   FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = x.indexrelid)),
		('depended on by',
			(SELECT string_agg(d.deptype::text || ' ' || pg_describe_object(d.classid, d.objid, d.objsubid),
							   ', ' ORDER BY d.deptype, pg_describe_object(d.classid, d.objid, d.objsubid))
			   FROM pg_depend d WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = x.indexrelid)),
		('shared dependencies',
			(SELECT string_agg(d.deptype::text || ' ' || d.refclassid::regclass || ' ' || d.refobjid, ', ' ORDER BY d.deptype, d.refobjid)
			   FROM pg_shdepend d
			  WHERE d.classid = 'pg_class'::regclass AND d.objid = x.indexrelid AND d.deptype <> 't'
				AND d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database()))),
		('constraints',
			(SELECT string_agg(format('%s %s %s %s %s %s', k.conname, k.contype, pg_get_constraintdef(k.oid), k.convalidated,
									  k.coninhcount, k.conislocal), ', ' ORDER BY k.conname)
			   FROM pg_constraint k WHERE k.conindid = x.indexrelid)),
		('parents',
			(SELECT string_agg(h.inhparent::regclass::text || ' ' || h.inhseqno, ', ' ORDER BY h.inhseqno)
			   FROM pg_inherits h WHERE h.inhrelid = x.indexrelid)),
		('children',
			(SELECT string_agg(h.inhrelid::regclass::text, ', ' ORDER BY h.inhrelid::regclass::text)
			   FROM pg_inherits h WHERE h.inhparent = x.indexrelid)),
		('scans', pg_stat_get_numscans(x.indexrelid)::text)
	 ) AS a(attribute, value)
$$;

CREATE TABLE oracle.old_metadata (rel text, index_name name, attribute text, value text);

CREATE FUNCTION oracle.remember_metadata(rel regclass) RETURNS void
LANGUAGE sql AS $$
	DELETE FROM oracle.old_metadata o WHERE o.rel = $1::text;
	INSERT INTO oracle.old_metadata SELECT $1::text, m.* FROM oracle.metadata($1) m;
$$;

-- Differences since then; the tablespace is not compared, and the number of
-- scans may grow, but not shrink.
CREATE FUNCTION oracle.metadata_changes(rel regclass)
RETURNS TABLE (index_name name, attribute text, before text, after text)
LANGUAGE sql AS $$
	SELECT coalesce(o.index_name, m.index_name), coalesce(o.attribute, m.attribute), o.value, m.value
	  FROM (SELECT * FROM oracle.old_metadata WHERE rel = $1::text) o
	  FULL JOIN oracle.metadata($1) m ON m.index_name = o.index_name AND m.attribute = o.attribute
	 WHERE coalesce(o.attribute, m.attribute) <> 'tablespace'
	   AND CASE WHEN coalesce(o.attribute, m.attribute) = 'scans'
				THEN o.value IS NULL OR m.value IS NULL OR m.value::bigint < o.value::bigint
				ELSE o.value IS DISTINCT FROM m.value OR (o.attribute IS NULL) <> (m.attribute IS NULL) END
	 ORDER BY 1, 2
$$;
