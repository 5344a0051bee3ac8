//! Tests with agents and a coordinator in one process, which connect over loopback.
//!
//! `refusals` tests refused connections.

mod refusals;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::agent::Agent;
use super::greeting::greet_coordinator;
use super::link::Link;
use super::session::flush;
use super::wire::{Answer, Order, Task};
use super::*;
use crate::content::{Content, RunId};
use crate::fixture;
use crate::histogram::Latencies;
use crate::load::{Generations, Ground, ReadChecks};
use crate::result::{CellResult, CellRun, ClientShare, RunResult};
use crate::run::{self, Before, Observer};
use crate::spec::{
    Access, CellSpec, DatasetSpec, Durability, LoadSpec, MetadataKind, MetadataShare, MetadataSpec,
    OpKind, RunSpec,
};
use crate::summary::merged;
use crate::target::memory::{Action, Memory};
use crate::target::shaped::Shaped;
use crate::target::{self, Address, Target};
use crate::verdict::{Finding, JudgedRun};

const DATASET: DatasetSpec = DatasetSpec { files: 2, file_bytes: 4 << 20 };
const FOUR: LoadSpec = LoadSpec::Closed { workers: 1, depth: 4 };

/// Agent that runs in its own thread; dropping this value ends the agent.
struct Running {
    address: String,
    said: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn new<T: Target + Clone + 'static>(secret: Option<Secret>, target: T) -> Self {
        Self::opens(secret, move || Box::new(target.clone()))
    }

    fn opens(
        secret: Option<Secret>,
        target: impl Fn() -> Box<dyn Target> + Send + Sync + 'static,
    ) -> Self {
        let agent = Agent::bind("127.0.0.1:0".parse().expect("an address"), secret);
        let agent = agent.expect("loopback").with_targets(move |_, _| Ok(target()));
        let address = agent.address().to_string();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (saying, stopped) = (Arc::clone(&said), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let say = |text: &str| saying.lock().push(text.to_owned());
            agent.serve(&stopped, &say);
        });
        Self { address, said, stop, thread: Some(thread) }
    }

    fn said(&self, part: &str) -> bool {
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while std::time::Instant::now() < until {
            if self.said.lock().iter().any(|text| text.contains(part)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().expect("once").join().expect("an agent does not panic");
    }
}

fn clients(agents: &[&Running], secret: Option<&Secret>) -> Clients {
    let agents = agents.iter().map(|agent| agent.address.clone()).collect();
    Clients::new(agents, "memory", secret.cloned())
}

fn cell(name: &str, clients: u32, read_pct: f64) -> CellSpec {
    let mut cell = fixture::cell(name, Vec::new()).spec;
    cell.streams[0].read_pct = read_pct;
    let (load, runs, duration_ms) = (FOUR, 1, 300);
    CellSpec { clients, load, runs, duration_ms, warmup_ms: 50, verify_pct: 100.0, ..cell }
}

fn spec(cells: Vec<CellSpec>) -> RunSpec {
    let mut spec = fixture::result(Vec::new()).spec;
    (spec.cells, spec.dataset) = (cells, DATASET);
    spec
}

/// Returns a valid task.
pub(super) fn task() -> Task {
    let spec = spec(vec![cell("task", 2, 50.0)]);
    Task {
        target: "memory".to_owned(),
        dataset: DATASET,
        content: spec.content.clone(),
        run: RunId::default(),
        block_bytes: 4096,
        durability: Durability::None,
        streams: spec.cells[0].streams.clone(),
        load: FOUR,
        warmup_ms: 0,
        duration_ms: 100,
        number: 1,
        of: 2,
        is_known: false,
        verify_full: false,
    }
}

struct Quiet;

impl Observer for Quiet {
    fn begins(&mut self, _: &str, _: u32, _: u32) {}
    fn done(&mut self, _: f64) {}
    fn goes_on(&mut self) -> bool {
        true
    }
    fn keep(&mut self, _: &RunResult) {}
}

fn do_run(cells: Vec<CellSpec>, target: &dyn Target, clients: &Clients) -> RunResult {
    let spec = spec(cells);
    run::run(&spec, target, clients, Vec::new(), Before::default(), &mut Quiet)
        .expect("it can begin")
}

/// Measures a cell on a target that stores no data, and returns the results of each client.
fn measure_each(clients: &Clients, cell: &CellSpec) -> Vec<(String, CellRun, i128)> {
    let (target, content) = (target::null(), spec(Vec::new()).content);
    let made = Content::new(&content, 4096, DATASET.total_bytes());
    let ground = Ground {
        target: &target,
        dataset: &DATASET,
        content: &made,
        generations: None,
        durability: Durability::None,
        seed: 1,
        read_checks: ReadChecks::Stamps,
    };
    let offer = SharedOffer { ground: &ground, content: &content, cell, load: cell.load };
    let each = clients.measure_each(&offer, &mut |_| true).expect("both are there");
    let all: Vec<_> =
        each.iter().map(|one| (one.name.clone(), one.run.clone(), one.began_ns)).collect();
    let whole = merge::merge(each);
    let mut union = Latencies::default();
    for (_, run, _) in &all {
        run.classes.iter().for_each(|class| union.add(&class.latency));
    }
    let found = merged(&whole.classes);
    assert_eq!(found, union, "every sample of both, and no other");
    for percent in [1.0, 50.0, 95.0, 99.0] {
        assert_eq!(found.percentile_us(percent), union.percentile_us(percent));
    }
    let ops = |run: &CellRun| run.classes.iter().map(|class| class.ops).sum::<u64>();
    assert_eq!(ops(&whole), all.iter().map(|(_, run, _)| ops(run)).sum::<u64>());
    all
}

#[test]
fn two_agents_start_together_and_merge_to_one_distribution() {
    let slow = |ms| move || Box::new(Shaped::latency(Duration::from_millis(ms))) as Box<dyn Target>;
    let (fast, slow) = (Running::opens(None, slow(1)), Running::opens(None, slow(4)));
    let clients = clients(&[&fast, &slow], None);
    assert_eq!(clients.check().expect("both answer").len(), 2);
    // Load on the machine may delay some of the five starts, but not all five.
    let skews: Vec<i128> = (0..5)
        .map(|_| {
            let each = measure_each(&clients, &cell("reads", 2, 100.0));
            let mean = |index: usize| each[index].1.classes[0].latency.mean_us();
            assert!(mean(0) >= 1000.0 && mean(1) >= 4000.0, "each has its own target");
            assert!(each[0].0.contains(&fast.address), "{}", each[0].0);
            (each[0].2 - each[1].2).abs()
        })
        .collect();
    assert!(skews.iter().any(|skew_ns| *skew_ns < 5_000_000), "{skews:?}");
}

#[test]
fn concurrent_clients_pass_the_final_verification() {
    let memory = Memory::new(8 << 20);
    let agents = [(); 3].map(|()| Running::new(None, memory.clone()));
    let clients = clients(&[&agents[0], &agents[1], &agents[2]], None);
    let cells = vec![
        cell("three mixed", 3, 50.0),
        cell("one mixed", 1, 50.0),
        cell("two writing", 2, 0.0),
        cell("four", 4, 50.0),
    ];
    let result = do_run(cells, &memory, &clients);
    assert!(result.complete, "{:?}", result.warnings);
    for (measured, clients) in result.cells[..3].iter().zip([3, 0, 2]) {
        let verified = measured.verified.as_ref().expect("it writes");
        assert_eq!((verified.blocks, verified.bad), (2048, 0), "{verified:?}");
        let run = &measured.runs[0];
        assert_eq!((run.corrupt, run.zero_reads_pct, run.clients.len()), (0, 0.0, clients));
        assert_eq!(run.start_skew_ms.is_some(), clients > 0);
        let iops: f64 = run.clients.iter().map(|client| client.iops).sum();
        let whole = crate::summary::RunFigures::of(run).iops;
        assert!(clients == 0 || (iops / whole - 1.0).abs() < 0.05, "{iops} {whole}");
    }
    let words = result.cells[3].failure.as_deref();
    assert_eq!(words, Some("it needs 4 clients, and there are 3 agents"));
}

#[test]
fn several_clients_are_judged_by_their_total_load() {
    // By Little's law, 1,000 operations per second at 16 ms give a queue depth of 16.
    let run = || fixture::closed_run(1000, 10, 75, 16_000, 16_000);
    let mut cell = fixture::cell("two", vec![run(), run(), run()]);
    cell.spec.load = LoadSpec::Closed { workers: 2, depth: 4 };
    let findings = |cell: &CellResult| {
        let judged = JudgedRun::of(fixture::result(vec![cell.clone()]));
        judged.cells()[0].remarks.clone()
    };
    assert_eq!(findings(&cell)[0].finding, Finding::Inconsistent, "one client would have 8");
    cell.spec.clients = 2;
    assert_eq!(findings(&cell), []);
    let share = |name: &str, cpu_pct| ClientShare {
        name: name.to_owned(),
        iops: 500.0,
        mean_us: 16_000.0,
        cpu_pct,
        clock_error_us: 20.0,
    };
    cell.runs[1].clients = vec![share("idle", 10.0), share("busy", 95.0)];
    let found = findings(&cell);
    assert_eq!((found.len(), found[0].finding), (1, Finding::GeneratorBound));
    assert_eq!(found[0].detail, "busy used 95 % of its cores");
}

#[test]
fn lost_write_of_several_clients_is_found() {
    let forgetful = Memory::twisted(8 << 20, |op| {
        let small = op.kind == OpKind::Write && op.len_bytes == 4096;
        if small && op.offset == 4096 * 5 { Action::Lost } else { Action::Right }
    });
    let agents = [(); 2].map(|()| Running::new(None, forgetful.clone()));
    let mut one = cell("two writing", 2, 0.0);
    one.duration_ms = 600;
    let result = do_run(vec![one], &forgetful, &clients(&[&agents[0], &agents[1]], None));
    let verified = result.cells[0].verified.as_ref().expect("it writes");
    assert_eq!(verified.bad, 1, "{verified:?}");
    assert!(verified.examples[0].contains("address 20480: generation 1"), "{verified:?}");
}

#[test]
fn other_storage_of_the_same_name_is_refused() {
    let (here, elsewhere) = (Memory::new(8 << 20), Memory::new(8 << 20));
    let (right, wrong) = (Running::new(None, here.clone()), Running::new(None, elsewhere));
    let cells = vec![cell("two", 2, 100.0), cell("one", 1, 100.0)];
    let result = do_run(cells, &here, &clients(&[&right, &wrong], None));
    let words = result.cells[0].failure.as_deref().unwrap_or_default();
    assert!(words.contains(&wrong.address), "{words}");
    assert!(words.contains("does not hold the data that the coordinator wrote"), "{words}");
    assert!(result.cells[1].failure.is_none() && result.cells[1].runs.len() == 1);
}

/// Behaves like an agent until the start message arrives, and then disconnects.
fn vanishes(listener: &TcpListener) {
    let mut link = Link::new(listener.accept().expect("it comes").0).expect("a socket");
    let accepted = greet_coordinator(&mut link, None).expect("accepted as coordinator");
    accepted.accept(&mut link).expect("it listens");
    loop {
        let (order, _) = link.receive::<Order>(Duration::from_secs(30)).expect("an order");
        let answer = match order {
            Order::Blocks(piece) if piece.is_last => Answer::Ready { cores: 1 },
            Order::Ping => Answer::Pong { received_ns: 1_000_000, sent_ns: 1_000_000 },
            Order::Start { .. } => return,
            _ => continue,
        };
        link.send(&answer).expect("it listens");
    }
}

#[test]
fn lost_agent_invalidates_only_its_cell() {
    let memory = Memory::new(8 << 20);
    let stays = Running::new(None, memory.clone());
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let gone = listener.local_addr().expect("bound").to_string();
    let thread = std::thread::spawn(move || vanishes(&listener));
    let agents = vec![stays.address.clone(), gone.clone()];
    let clients = Clients::new(agents, "memory", None);
    let cells = vec![cell("two", 2, 100.0), cell("one", 1, 50.0)];
    let result = do_run(cells, &memory, &clients);
    thread.join().expect("it ended");
    assert!(result.complete);
    let words = result.cells[0].failure.clone().unwrap_or_default();
    assert!(words.contains(&gone) && words.contains("was lost"), "{words}");
    assert!(result.cells[0].runs.is_empty() && result.cells[1].runs.len() == 1);
    assert_eq!(result.cells[1].verified.as_ref().map(|verified| verified.bad), Some(0));
    let judged = JudgedRun::of(result);
    assert_eq!(judged.cells()[0].verdict(), "invalid");
    // The agent that remained was stopped, and accepts connections again.
    assert!(stays.said("was cancelled") || stays.said("closed"), "{:?}", stays.said.lock());
    assert!(Clients::new(vec![stays.address.clone()], "memory", None).check().is_ok());
}

#[test]
fn blocks_of_a_lost_client_become_unknown() {
    let known = Generations::new(DATASET.total_bytes(), 4096).expect("small");
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let gone = listener.local_addr().expect("bound").to_string();
    let thread = std::thread::spawn(move || vanishes(&listener));
    let (target, content) = (target::null(), spec(Vec::new()).content);
    let made = Content::new(&content, 4096, DATASET.total_bytes());
    let ground = Ground {
        target: &target,
        dataset: &DATASET,
        content: &made,
        generations: Some(&known),
        durability: Durability::None,
        seed: 1,
        read_checks: ReadChecks::Stamps,
    };
    let mut one = cell("writes", 2, 0.0);
    one.clients = 1;
    let offer = SharedOffer { ground: &ground, content: &content, cell: &one, load: FOUR };
    let clients = Clients::new(vec![gone], "memory", None);
    let began = std::time::Instant::now();
    assert!(matches!(clients.measure(&offer, &mut |_| true), Err(ClientError::Lost { .. })));
    assert!(began.elapsed() >= SILENCE_MAX, "it was given the time to notice");
    assert_eq!((known.now(0), known.now((8 << 20) - 4096)), (None, None));
    thread.join().expect("it ended");
}

#[test]
fn clients_use_files_of_their_own_in_one_directory() {
    let path = tempfile::tempdir().unwrap();
    let address = Address::Directory(path.path().to_owned());
    let open = move || target::open(&address, &DATASET).expect("a directory");
    let directory = open();
    let agents = [Running::opens(None, open.clone()), Running::opens(None, open)];
    let clients = clients(&[&agents[0], &agents[1]], None);
    let mut create = CellSpec { warmup_ms: 0, ..cell("create", 2, 0.0) };
    let stream = &mut create.streams[0];
    (stream.op, stream.access) = (Some(OpKind::Create), Access::Sequential);
    stream.blocks.clear();
    let files = MetadataSpec::Files { files: 20, file_bytes: 100, shared: true };
    stream.metadata = Some(files);
    let mut mix = cell("mix", 2, 50.0);
    let shares = MetadataKind::ALL.map(|op| MetadataShare { op, weight: 1.0 }).to_vec();
    mix.streams[0].metadata = Some(MetadataSpec::Mix { pct: 20.0, shares });
    let result = do_run(vec![create, mix], &*directory, &clients);
    let [create, mix] = &result.cells[..] else { panic!("two cells") };
    assert_eq!((&create.failure, &mix.failure), (&None, &None));
    let run = &create.runs[0];
    let check = run.files.as_ref().expect("it creates files");
    assert_eq!((check.missing, check.unexpected), (0, 0), "{check:?}");
    assert!((1..=40).contains(&check.listed), "{check:?}");
    // On a busy machine, some files are created after the end of the measured time.
    let created = &run.classes[0];
    assert!(created.op == OpKind::Create && created.ops <= check.listed, "{created:?}");
    let run = &mix.runs[0];
    let metadata = run.classes.iter().find(|class| class.op == OpKind::Metadata);
    let ops = metadata.expect("it is a mix").ops;
    assert!(ops > 0 && run.metadata_ops.values().sum::<u64>() == ops, "{:?}", run.metadata_ops);
    let left = std::fs::read_dir(path.path()).unwrap().count();
    assert_eq!(left, DATASET.files as usize, "only the files of the dataset");
}

/// A flush used to reach only the first file of a directory: the flush had a lane of its own, which
/// had written to no file.
#[test]
fn flush_reaches_every_file_of_a_directory() {
    let path = tempfile::tempdir().unwrap();
    // The kernel refuses to flush this file (EINVAL), so a flush of it cannot succeed unnoticed.
    std::os::unix::fs::symlink("/dev/null", path.path().join("weir-bench-00001.dat")).unwrap();
    let address = Address::Directory(path.path().to_owned());
    let directory = target::open(&address, &DATASET).expect("a directory");
    let error = flush(&*directory).expect_err("the second file cannot be flushed").to_string();
    assert!(error.contains("flush"), "{error}");
    let one = DatasetSpec { files: 1, ..DATASET };
    let directory = target::open(&address, &one).expect("a directory");
    flush(&*directory).expect("only the first file");
}
