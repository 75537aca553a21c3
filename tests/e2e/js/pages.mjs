// Pages of a headless Chromium for the end-to-end tests, each in a browser context of its own, so that
// they share nothing. Start: `node pages.mjs CHROMIUM`. Standard input takes one request a line, and
// standard output returns one answer or event a line.
//
//   {"id": 1, "session": "ann", "method": "open", "url": "http://..."}
//   {"id": 2, "session": "ann", "method": "fill", "selector": "input", "text": "hello"}
//   {"id": 3, "session": "ann", "method": "wait", "condition": "document.title === 'hello'"}
import {createInterface} from 'node:readline';
import {chromium} from 'playwright-core';
import {ARGUMENTS} from './browser.mjs';

const DEADLINE_MS = 50000;
const send = (value) => process.stdout.write(JSON.stringify(value) + '\n');
const browser = await chromium.launch({executablePath: process.argv[2], headless: true, timeout: 60000, args: ARGUMENTS});
const pages = new Map();

async function open(session, {url}) {
  const page = await (await browser.newContext({viewport: {width: 1000, height: 640}})).newPage();
  page.setDefaultTimeout(DEADLINE_MS);
  page.on('pageerror', (error) => send({session, event: 'page error', message: String(error)}));
  page.on('console', (message) => send({session, event: 'console', message: message.text()}));
  pages.set(session, page);
  await page.goto(url);
}

async function call({session, method, ...params}) {
  if (method === 'open') return open(session, params);
  const page = pages.get(session);
  switch (method) {
    case 'fill': return page.fill(params.selector, params.text);
    case 'press': return page.press(params.selector, params.key);
    case 'click': return page.click(params.selector);
    case 'attach': return page.setInputFiles(params.selector, params.path);
    case 'evaluate': return page.evaluate(params.expression);
    case 'wait': await page.waitForFunction(params.condition, null, {timeout: DEADLINE_MS}); return null;
    case 'reload': await page.reload(); return null;
    case 'screenshot': await page.screenshot({path: params.path}); return null;
    default: throw new Error(`no such method: ${method}`);
  }
}

send({event: 'ready'});
const pending = new Set();
for await (const line of createInterface({input: process.stdin})) {
  const {id, ...request} = JSON.parse(line);
  const work = call(request).then(
    (result) => send({id, result: result ?? null}),
    (error) => send({id, error: {message: error.message ?? String(error)}}),
  ).finally(() => pending.delete(work));
  pending.add(work);
}
await browser.close();
process.exit(0);
