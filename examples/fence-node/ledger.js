// Writes entries to a ledger in PostgreSQL under the fence, which refuses what a past tenure still sends.
//
// Run it as the command of a SingletonJob's container. The agent sets FENCING_TOKEN, SINGLETONJOB_NAMESPACE and SINGLETONJOB_NAME;
// DATABASE_URL is the address of the ledger. ENTRIES limits the number of entries; without it, the program writes indefinitely.
//
// The database needs fence.sql (fence/fencesql) and: CREATE TABLE entries (n bigserial PRIMARY KEY, token bigint, payload text)
'use strict';

const { Client } = require('pg');

const refusals = { FE412: 'stale', FE428: 'missing', FE400: 'malformed', FE425: 'ahead' }; // the SQLSTATEs of fence.sql
const pastTenure = 3; // the exit status when the tenure is over

function environment(name) {
  const value = process.env[name];
  if (!value) {
    throw new Error(`${name} is not set: run this as the command of a SingletonJob`);
  }
  return value;
}

// write writes in one transaction. The check locks the mark until the commit, so no later tenure can write in between. The token stays a string,
// because a JavaScript number is a double, which cannot tell tokens above 2^53 apart.
async function write(client, resource, token, payload) {
  await client.query('BEGIN');
  try {
    await client.query('SELECT fence.assert($1, $2)', [resource, token]);
    await client.query('INSERT INTO entries (token, payload) VALUES ($1, $2)', [token, payload]);
    await client.query('COMMIT');
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {}); // the first error says more
    throw error;
  }
}

async function main() {
  const token = environment('FENCING_TOKEN');
  const resource = `${environment('SINGLETONJOB_NAMESPACE')}/${environment('SINGLETONJOB_NAME')}`;
  const client = new Client({ connectionString: environment('DATABASE_URL') });
  await client.connect();
  const entries = Number(process.env.ENTRIES || Infinity);
  try {
    for (let n = 0; n < entries; n++) {
      await write(client, resource, token, `${token}:${n}`);
      console.log(`stored ${token}:${n}`);
      if (entries === Infinity) {
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  } catch (error) {
    if (!refusals[error.code]) {
      throw error;
    }
    console.error(`refused: ${error.message}; ${error.hint}`);
    process.exitCode = refusals[error.code] === 'stale' ? pastTenure : 1;
  } finally {
    await client.end();
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
