# Calls through psycopg, for t/071_clients_psycopg.pl: psycopg_calls.py MODULE CONNSTR
#   MODULE is psycopg2 or psycopg.  Prints "what: outcome" in lines.
import importlib
import sys
import threading
import time

module, connstr = sys.argv[1:]
driver = importlib.import_module(module)
notices = []


def connect(autocommit):
    # where the database is SQL_ASCII, psycopg 3 would return bytes
    connection = driver.connect(connstr + ' client_encoding=UTF8')
    connection.autocommit = autocommit
    if module == 'psycopg':
        connection.add_notice_handler(lambda d: notices.append(d.message_primary))
    return connection


def sqlstate(error):
    return error.pgcode if module == 'psycopg2' else error.sqlstate


def tell(what, outcome):
    print(f'{what}: {outcome}', flush=True)


def call(cursor, sql, *values):
    try:
        cursor.execute(sql, values)
        return cursor.fetchall() if cursor.description else 'done'
    except driver.Error as error:
        return sqlstate(error)


own = connect(True)
cursor = own.cursor()
tell('waiting', call(
    cursor, "SELECT name, status FROM move_indexes(%s, 'regress_fast', 'copy', settings => %s)",
    't', '{"progress_interval": "500ms", "max_rate": "2MB"}'))
if module == 'psycopg2':
    notices += [n.split(':', 1)[1].strip() for n in own.notices]
tell('notices', len([n for n in notices if 't_v' in n]) > 0)

# without autocommit each statement is in a transaction block
block = connect(False)
tell('in a transaction', call(block.cursor(), "SELECT move_indexes('t', 'regress_slow')"))
block.rollback()
rows = call(block.cursor(), "SELECT job, status FROM move_indexes('t', 'regress_slow', 'copy', wait => false)")
tell('queued in a transaction', rows[0][1])
block.commit()
tell('waiting for the job', call(cursor, f'CALL wait_for_move({rows[0][0]})'))
tell('then', call(cursor, 'SELECT status FROM index_mover_history WHERE job = %s', rows[0][0]))

# the statement itself: online with autocommit only; and the text that pgAdmin sends
for sent in own, block:
    call(sent.cursor(), "LOAD 'index_mover'")
    call(sent.cursor(), 'SET index_mover.online_alter = require')
    sent.commit()
tell('ALTER in a transaction', call(block.cursor(), 'ALTER INDEX t_v SET TABLESPACE regress_fast'))
block.rollback()
tell('ALTER', call(cursor, 'ALTER INDEX IF EXISTS public.t_v\n    SET TABLESPACE regress_fast;\n'))
tell('ALTER back', call(cursor, 'ALTER INDEX ALL IN TABLESPACE regress_fast\n\n    SET TABLESPACE regress_slow;\n\n'))


# a cancel from another thread, as soon as the copy has begun
def cancel():
    with connect(True) as watch:
        watch.autocommit = True
        for _ in range(600):
            if call(watch.cursor(), "SELECT 1 FROM index_mover_progress WHERE blocks_done > 0"):
                own.cancel()
                return
            time.sleep(0.1)


thread = threading.Thread(target=cancel)
thread.start()
tell('canceled', call(
    cursor, "SELECT status FROM move_indexes('t', 'regress_fast', 'copy', settings => '{\"max_rate\": \"64kB\"}')"))
thread.join()
tell('after the cancel', call(cursor, 'SELECT status FROM index_mover_history ORDER BY job DESC LIMIT 1'))
