// A service of the usual kind: it answers on a port while it works, and ends when it is asked to.
const fs = require('fs');
const http = require('http');

// Node knows no CLOCK_BOOTTIME: this is it, in hundredths of a second.
const boottime = () => Math.round(parseFloat(fs.readFileSync('/proc/uptime', 'utf8')) * 100) * 1e7;

const server = http.createServer((_, response) => response.end('node\n')).listen(8080);
const writer = `${process.env.SINGLETONJOB_POD}@${boottime()}`;
let seq = 0;
const timer = setInterval(() => {
  const request = http.request(process.env.SINK + '/write', {
    method: 'POST', timeout: 1000,
    headers: {'Fencing-Token': process.env.FENCING_TOKEN, 'Fencing-Resource': process.env.RESOURCE},
  }, (response) => response.resume());
  request.on('timeout', () => request.destroy());
  request.on('error', () => {}); // refused or lost: it goes on
  request.end(JSON.stringify({writer, seq: ++seq, sentNanos: boottime()}));
}, 100);
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => {
  console.log('stopped by ' + signal);
  clearInterval(timer);
  server.close(() => process.exit(0));
  server.closeAllConnections();
});
