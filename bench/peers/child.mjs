// The entrants of Node: a child of bench, as child.go describes it. Its command line is the folder with node_modules.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(process.argv[1] + "/");
const pg = require("pg");
const graphile = require("graphile-worker");
const { PgBoss } = require("pg-boss");

const kind = "bench.plain";
const notified = "bench.notified"; // pg-boss's queue whose enqueues notify

// Roll is called by every handler. It notices a job that runs twice or was never enqueued.
class Roll {
	constructor(n) {
		this.seen = new Uint8Array(n);
		this.left = n;
		this.wrong = 0;
		this.started = new Float64Array(n);
		this.done = new Promise((resolve) => (this.all = resolve));
	}
	call(i) {
		if (!(i >= 0 && i < this.seen.length) || this.seen[i]) {
			this.wrong++;
			return;
		}
		this.started[i] = performance.now();
		this.seen[i] = 1;
		if (--this.left === 0) this.all();
	}
	verify() {
		if (this.wrong > 0) throw new Error(`${this.wrong} calls for jobs that had run before or do not exist`);
	}
}

const numbers = (n) => Array.from({ length: n }, (_, i) => i);

// pool has all its connections open.
async function pool(url, size) {
	const p = new pg.Pool({ connectionString: url, max: size, min: size });
	p.on("error", () => {});
	const held = await Promise.all(numbers(size).map(() => p.connect()));
	for (const c of held) c.release();
	return p;
}

// A queue opens an enqueuer {one, many, close} and a worker {stop}.
const queues = {
	"graphile-worker": {
		async migrate(url) {
			await graphile.runMigrations({ connectionString: url, logger });
		},
		async enqueuer(url, connections) {
			const pgPool = await pool(url, connections);
			const utils = await graphile.makeWorkerUtils({ pgPool, logger });
			return {
				one: (n) => utils.addJob(kind, { n }),
				many: (ns) => utils.addJobs(ns.map((n) => ({ identifier: kind, payload: { n } }))),
				close: async () => (await utils.release(), await pgPool.end()),
			};
		},
		async worker(url, roll, how) {
			// The settings of https://worker.graphile.org/docs/performance, where latency does without the local queue.
			const tuned = { concurrentJobs: 24, maxPoolSize: 25 };
			const batched = { ...tuned, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
			const runner = await graphile.run({
				preset: { worker: { connectionString: url, ...{ drain: batched, latency: tuned }[how] } },
				logger,
				noHandleSignals: true,
				parsedCronItems: [],
				taskList: { [kind]: async (payload) => roll.call(payload.n) },
			});
			return { stop: () => runner.stop() };
		},
	},
	"pg-boss": {
		async migrate(url) {
			const boss = await started(url, 2, {});
			await boss.createQueue(kind);
			await boss.createQueue(notified, { notify: true });
			await boss.stop();
		},
		async enqueuer(url, connections, how) {
			const boss = await started(url, connections, {});
			const queue = how === "latency" ? notified : kind;
			return {
				one: (n) => boss.send(queue, { n }),
				many: (ns) => boss.insert(queue, ns.map((n) => ({ data: { n } }))),
				close: () => boss.stop(),
			};
		},
		async worker(url, roll, how) {
			const latency = how === "latency";
			const boss = await started(url, 10, { useListenNotify: latency });
			const settings = latency ? { batchSize: 100, localConcurrency: 2 } : { batchSize: 1000, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5, localConcurrency: 2 };
			await boss.work(latency ? notified : kind, settings, async (jobs) => {
				for (const job of jobs) roll.call(job.data.n);
			});
			return { stop: () => boss.stop({ graceful: true }) };
		},
	},
};

async function started(url, max, options) {
	const boss = new PgBoss({ connectionString: url, max, ...options });
	boss.on("error", (e) => console.error(e));
	await boss.start();
	return boss;
}

const logger = new graphile.Logger(() => (level, message) => {
	if (level === "error") console.error(message);
});

// open prepares, and gives what is measured and what comes after it.
async function open({ Contest, Entrant, URL: url, Jobs: n }) {
	const queue = queues[Entrant];
	const ns = numbers(n);
	const [contest, defaults] = Contest.split("-");
	const enqueue = /^enqueue(\d+|many)$/.exec(contest)?.[1];
	if (contest === "migrate") return { run: () => queue.migrate(url) };
	if (enqueue === "many") {
		const e = await queue.enqueuer(url, 1);
		return { run: () => e.many(ns), close: e.close };
	}
	if (enqueue) {
		const callers = Number(enqueue);
		const e = await queue.enqueuer(url, callers);
		const caller = async (from) => {
			for (let i = from; i < n; i += callers) await e.one(i);
		};
		return { run: () => Promise.all(numbers(callers).map(caller)), close: e.close };
	}
	const roll = new Roll(n);
	if (contest === "drain") {
		return {
			run: async () => {
				const w = await queue.worker(url, roll, defaults ?? "drain");
				await roll.done;
				await w.stop();
				roll.verify();
			},
		};
	}
	// latency
	const how = defaults ?? "latency";
	const e = await queue.enqueuer(url, 1, how);
	const w = await queue.worker(url, roll, how);
	const committed = new Float64Array(n);
	return {
		close: e.close,
		run: async () => {
			let next = performance.now();
			for (const i of ns) {
				await until(next);
				next = performance.now() - Math.log(1 - Math.random()) * 20;
				await e.one(i);
				committed[i] = performance.now();
			}
			await roll.done;
			await w.stop();
			roll.verify();
		},
		latencies: () => {
			const all = ns.slice(Math.floor(n / 10)).map((i) => (roll.started[i] - committed[i]) / 1000);
			all.sort((a, b) => a - b);
			const quantile = (q) => all[Math.min(Math.floor(q * all.length), all.length - 1)];
			return { P50: quantile(0.5), P99: quantile(0.99), Curve: numbers(101).map((i) => quantile(i / 100)) };
		},
	};
}

function until(time) {
	const left = time - performance.now();
	return left > 0 ? new Promise((resolve) => setTimeout(resolve, left)) : undefined;
}

function answer(a) {
	process.stdout.write(JSON.stringify(a) + "\n");
}

async function main() {
	const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
	const line = async () => (await input.next()).value;
	const session = await open(JSON.parse(await line()));
	answer({ Ready: true });
	if ((await line()) !== "go") throw new Error("expected go");
	input.next().then(() => setTimeout(() => process.exit(1), 10_000).unref()); // the parent is gone, or is done
	const begin = performance.now();
	const used = process.cpuUsage();
	await session.run();
	const seconds = (performance.now() - begin) / 1000;
	const cpu = process.cpuUsage(used);
	answer({
		Seconds: seconds,
		Client: (cpu.user + cpu.system) / 1e6,
		Memory: process.resourceUsage().maxRSS * 1024,
		...session.latencies?.(),
	});
	await session.close?.();
}

main().then(
	() => process.exit(0),
	(e) => {
		answer({ Error: String(e?.stack ?? e) });
		process.exit(1);
	},
);
