//! Processes that wait for each other: they are told so, and nobody else is.

use super::*;
use samite_testkit::fuzz::{self, Rng};

const TIMEOUT: u64 = 1000;

/// Who writes a stream, a process each rank, and who reads it: groups of processes, each with its
/// limit of steps.
#[derive(Clone, Debug)]
struct Sketch {
    name: String,
    writers: Vec<u32>,
    groups: Vec<(Vec<u32>, u64)>,
}

/// What a process does next, or waits for.
#[derive(Clone, Copy, Debug)]
enum Act {
    Write(WriterId),
    Read(ReaderId),
    Release(ReaderId, Ticket),
}

#[derive(Default)]
struct Process {
    writes: Vec<(WriterId, Step)>,
    reads: Vec<ReaderId>,
    holds: Vec<(ReaderId, Ticket)>,
    waits: Option<(Ticket, Act)>,
    gives_up: bool,
}

/// A coordinator, processes that write steps of nothing and read them, and what they were answered.
struct World {
    coordinator: Coordinator,
    processes: Vec<Process>,
    tickets: u64,
}

impl World {
    fn new(processes: u32, streams: &[Sketch], gives_up: &[u32]) -> World {
        let process = |number| Process {
            gives_up: gives_up.contains(&number),
            ..Process::default()
        };
        let mut world = World {
            coordinator: Coordinator::new(),
            processes: (0..processes).map(process).collect(),
            tickets: 0,
        };
        for stream in streams {
            world.open(stream);
        }
        world
    }

    fn open(&mut self, sketch: &Sketch) {
        for (rank, &writer) in (0..).zip(&sketch.writers) {
            let request = Request::OpenWriter {
                ticket: self.ticket(),
                stream: sketch.name.clone(),
                program: format!("{}-writers", sketch.name),
                rank,
                size: sketch.writers.len() as u32,
                config: Box::new(config()),
                timeout: 0,
                gives_up: self.processes[writer as usize].gives_up,
            };
            match self.said(writer, request) {
                Some(Answer::Writing { writer: id, .. }) => {
                    self.processes[writer as usize].writes.push((id, 0));
                }
                other => panic!("{other:?}"),
            }
        }
        for (number, (readers, steps)) in sketch.groups.iter().enumerate() {
            for (rank, &reader) in (0..).zip(readers) {
                let (steps, bytes) = (*steps, 1 << 20);
                let request = Request::OpenReader {
                    ticket: self.ticket(),
                    stream: sketch.name.clone(),
                    reader: Box::new(Reader {
                        rank,
                        size: readers.len() as u32,
                        limits: Some(Limits { steps, bytes }),
                        ..group(&format!("{}-readers-{number}", sketch.name), Policy::Block)
                    }),
                    timeout: 0,
                    gives_up: self.processes[reader as usize].gives_up,
                };
                match self.said(reader, request) {
                    Some(Answer::Reading { reader: id, .. }) => {
                        self.processes[reader as usize].reads.push(id);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// What a process that says this is answered at once.
    fn said(&mut self, from: u32, request: Request) -> Option<Answer> {
        let ticket = request.ticket();
        let event = Event::Said(Peer(from.into()), request);
        let mut own = None;
        for (to, of, answer) in answers(self.coordinator.on_event(0, event)) {
            match Some(of) == ticket {
                true => own = Some(answer),
                false => self.answered(to, of, answer),
            }
        }
        own
    }

    /// A process does something, and waits if it has to.
    fn act(&mut self, process: u32, act: Act) {
        let ticket = self.ticket();
        let at = process as usize;
        let request = match act {
            Act::Write(writer) => {
                let mut writes = self.processes[at].writes.iter();
                let (_, step) = writes.find(|(id, _)| *id == writer).expect("its own");
                Request::Begin {
                    ticket,
                    writer,
                    step: *step,
                    wants: Vec::new(),
                    timeout: TIMEOUT,
                }
            }
            Act::Read(reader) => Request::Next {
                ticket,
                reader,
                timeout: TIMEOUT,
            },
            Act::Release(reader, hold) => {
                self.processes[at]
                    .holds
                    .retain(|held| *held != (reader, hold));
                let read = 0;
                self.said(process, Request::Release { reader, hold, read });
                return;
            }
        };
        self.processes[at].waits = Some((ticket, act));
        if let Some(answer) = self.said(process, request) {
            self.answered(process, ticket, answer);
        }
    }

    fn answered(&mut self, process: u32, ticket: Ticket, answer: Answer) {
        let waited = self.processes[process as usize].waits.take();
        let Some((_, act)) = waited.filter(|(waited, _)| *waited == ticket) else {
            panic!("{process} did not wait for {answer:?}");
        };
        match (answer, act) {
            (Answer::Begun { .. }, Act::Write(writer)) => self.commit(process, writer),
            (Answer::Step(_), Act::Read(reader)) => {
                self.processes[process as usize]
                    .holds
                    .push((reader, ticket));
            }
            (other, act) => panic!("{process}: {other:?} of {act:?}"),
        }
    }

    fn commit(&mut self, process: u32, writer: WriterId) {
        let mut writes = self.processes[process as usize].writes.iter_mut();
        let (_, step) = writes.find(|(id, _)| *id == writer).expect("its own");
        let part = Part {
            step: *step,
            layout: LayoutRef::New(Arc::default()),
            slots: Vec::new(),
            places: BlockOffsets::Packed,
            attributes: Vec::new(),
            checksum: 0,
        };
        *step += 1;
        let (ticket, keep) = (self.ticket(), false);
        let request = Request::Commit {
            ticket,
            writer,
            part,
            keep,
        };
        assert_eq!(self.said(process, request), Some(Answer::Committed));
    }

    fn write(&mut self, process: u32, stream: usize) {
        let (writer, _) = self.processes[process as usize].writes[stream];
        self.act(process, Act::Write(writer));
    }

    /// Takes a step, and lets it go.
    fn read(&mut self, process: u32, stream: usize) {
        let reader = self.processes[process as usize].reads[stream];
        self.act(process, Act::Read(reader));
        if let Some((reader, hold)) = self.processes[process as usize].holds.pop() {
            self.act(process, Act::Release(reader, hold));
        }
    }

    fn waits(&self, process: u32) -> bool {
        self.processes[process as usize].waits.is_some()
    }

    /// What everybody who waits is told when all deadlines are over.
    fn late(mut self) -> BTreeMap<u32, Fault> {
        let answers = answers(self.coordinator.on_event(TIMEOUT, Event::Tick));
        let fault = |answer| match answer {
            Answer::Failed(fault @ Fault::Circle { .. }) | Answer::Waiting(fault) => fault,
            other => panic!("{other:?}"),
        };
        answers.map(|(to, _, answer)| (to, fault(answer))).collect()
    }

    /// Some process that does not wait does something by chance; `false` when there is none.
    fn anything(&mut self, random: &mut Rng) -> bool {
        let all = 0..self.processes.len() as u32;
        let free: Vec<u32> = all.filter(|process| !self.waits(*process)).collect();
        let Some(&process) = random.choice(&free) else {
            return false;
        };
        let Process {
            writes,
            reads,
            holds,
            ..
        } = &self.processes[process as usize];
        let writes = writes.iter().map(|(writer, _)| Act::Write(*writer));
        let reads = reads.iter().map(|reader| Act::Read(*reader));
        let holds = holds
            .iter()
            .map(|(reader, hold)| Act::Release(*reader, *hold));
        let acts: Vec<Act> = writes
            .chain(reads)
            .chain(holds.clone())
            .chain(holds)
            .collect();
        if let Some(&act) = random.choice(&acts) {
            self.act(process, act);
        }
        true
    }
}

/// Whom the answers among the actions go to.
fn answers(actions: Vec<Action>) -> impl Iterator<Item = (u32, Ticket, Answer)> {
    actions
        .into_iter()
        .filter_map(|Action::Send(to, notice)| match notice {
            Notice::Answer { ticket, answer } => Some((to.0 as u32, ticket, answer)),
            Notice::Order(_) => None,
        })
}

fn sketch(name: &str, writers: &[u32], groups: &[&[u32]]) -> Sketch {
    Sketch {
        name: name.into(),
        writers: writers.to_vec(),
        groups: groups.iter().map(|readers| (readers.to_vec(), 1)).collect(),
    }
}

fn is_circle(told: &BTreeMap<u32, Fault>, process: u32) -> bool {
    matches!(told.get(&process), Some(Fault::Circle { .. }))
}

/// Two streams, a step each: one waits for capacity in the first before it writes the second, for
/// which the other one waits first.
fn two_streams(gives_up: &[u32]) -> World {
    let field = sketch("field", &[0], &[&[1]]);
    let control = sketch("control", &[0], &[&[1]]);
    let mut world = World::new(2, &[field, control], gives_up);
    world.write(0, 0);
    world.write(0, 0);
    assert!(world.waits(0), "it is at the limit");
    world
}

#[test]
fn a_limit_and_a_step_of_another_stream() {
    let mut world = two_streams(&[]);
    world.read(1, 1);
    let told = world.late();
    assert_eq!(
        told[&0].to_string(),
        "this wait would never end, because field-writers.0 waits for capacity in field until field-readers-0.0 reads, and control-readers-0.0 waits for control-writers.0 to commit step 0 of control: raise a limit, or change the order in which one of them reads or writes"
    );
    assert!(is_circle(&told, 1), "{told:?}");
}

/// A process that computes may read any time, and one that gives up in time may then.
#[test]
fn who_computes_or_gives_up_is_in_no_circle() {
    let told = two_streams(&[]).late();
    assert!(matches!(told[&0], Fault::ReadersBehind { .. }), "{told:?}");
    for gives_up in [0, 1] {
        let mut world = two_streams(&[gives_up]);
        world.read(1, 1);
        let told = world.late();
        assert!(matches!(told[&0], Fault::ReadersBehind { .. }), "{told:?}");
        assert!(matches!(told[&1], Fault::NoStep { .. }), "{told:?}");
    }
}

#[test]
fn a_process_that_waits_for_itself() {
    let mut world = World::new(1, &[sketch("field", &[0], &[&[0]])], &[]);
    world.write(0, 0);
    world.write(0, 0);
    let told = world.late();
    assert_eq!(
        told[&0],
        Fault::Circle {
            waits: Arc::new([
                "field-writers.0 waits for capacity in field until field-readers-0.0 reads".into()
            ])
        }
    );
}

/// A process that waits for itself is told so, unless another of its threads may act.
#[test]
fn a_process_of_several_threads_may_wait_for_itself() {
    for is_threaded in [false, true] {
        let mut world = World::new(1, &[sketch("a", &[0], &[&[0]])], &[]);
        if is_threaded {
            assert_eq!(world.said(0, Request::Threads), None);
        }
        world.read(0, 0);
        let told = world.late();
        assert_ne!(is_circle(&told, 0), is_threaded, "{told:?}");
    }
}

/// Three in a circle of steps, one that waits for the circle, and a chain behind one that computes.
#[test]
fn circles_are_told_apart_from_chains() {
    let streams = [
        sketch("a", &[0], &[&[1]]),
        sketch("b", &[1], &[&[2]]),
        sketch("c", &[2], &[&[0], &[3]]),
        sketch("d", &[4], &[&[5]]),
        sketch("e", &[5], &[&[6]]),
    ];
    let mut world = World::new(7, &streams, &[]);
    for process in [0, 1, 2, 3, 5, 6] {
        world.read(process, 0);
    }
    let told = world.late();
    for process in 0..4 {
        assert!(is_circle(&told, process), "{process}: {told:?}");
    }
    let Fault::Circle { waits } = &told[&3] else {
        panic!("{told:?}");
    };
    assert_eq!(waits.len(), 4, "{waits:?}");
    for process in [5, 6] {
        assert!(matches!(told[&process], Fault::NoStep { .. }), "{told:?}");
    }
}

/// A rank of a group that waits does not keep a writer, as long as others let enough go; nor one
/// that is away.
#[test]
fn room_that_others_can_make_is_waited_for() {
    // Rank 0 has taken the step and waits for another stream; rank 1 has it still to take.
    let streams = [
        sketch("field", &[0], &[&[1, 2]]),
        sketch("control", &[0], &[&[1]]),
    ];
    let waits = || {
        let mut world = World::new(3, &streams, &[]);
        world.write(0, 0);
        world.read(1, 0);
        world.write(0, 0);
        world.read(1, 1);
        assert!(world.waits(0) && world.waits(1));
        world
    };
    let told = waits().late();
    assert!(matches!(told[&0], Fault::ReadersBehind { .. }), "{told:?}");
    // Now the one that has it still to take waits, too.
    let mut world = waits();
    world.read(2, 0);
    assert!(!world.waits(0), "there is room");
    let streams = [
        sketch("field", &[0], &[&[1, 2]]),
        sketch("control", &[0], &[&[1], &[2]]),
    ];
    let mut world = World::new(3, &streams, &[]);
    world.write(0, 0);
    world.read(1, 0);
    world.write(0, 0);
    world.read(2, 1);
    let told = world.late();
    assert!(is_circle(&told, 0) && is_circle(&told, 2), "{told:?}");
}

/// A rank that is ahead waits for the last one of its group, since the step that comes next is too
/// large beside what that has still to take. As long as the writer computes a smaller one may come
/// in its place; not if the writer waits, too, or is not waited for.
#[test]
fn a_step_that_a_smaller_one_may_replace_keeps_nobody() {
    for (policy, writer_waits, in_circle) in [
        (Policy::Latest, false, false),
        (Policy::DropOldest, false, false),
        (Policy::DropNewest, false, false),
        (Policy::Latest, true, true),
        (Policy::DropOldest, true, true),
    ] {
        let mut stage = Stage::new(1 << 20);
        let field = stage.writer(0, 1, &config());
        let write = |stage: &mut Stage, step, bytes| {
            let ticket = stage.begin(field, step, bytes);
            let buffers = stage.buffers(ticket);
            let ticket = stage.commit(field, step, line(&[(0, 16)]), &buffers);
            assert_eq!(stage.answer(ticket), Answer::Committed);
        };
        let limits = Some(Limits {
            steps: 10,
            bytes: 40_000,
        });
        let wide = |rank| Reader {
            rank,
            size: 2,
            limits,
            ..group("viewer", policy)
        };
        let first = stage.reader(10, wide(0));
        stage.reader(11, wide(1));
        let open = |stage: &mut Stage, writes: u32, reads: u32, name: &str| {
            let ticket = stage.ask(Peer(writes.into()), |ticket| Request::OpenWriter {
                ticket,
                stream: name.into(),
                program: name.into(),
                rank: 0,
                size: 1,
                config: Box::new(config()),
                timeout: 0,
                gives_up: false,
            });
            assert!(matches!(stage.answer(ticket), Answer::Writing { .. }));
            let ticket = stage.ask(Peer(reads.into()), |ticket| Request::OpenReader {
                ticket,
                stream: name.into(),
                reader: Box::new(group("readers", Policy::Block)),
                timeout: 0,
                gives_up: false,
            });
            match stage.answer(ticket) {
                Answer::Reading { reader, .. } => reader,
                other => panic!("{other:?}"),
            }
        };
        let control = open(&mut stage, 10, 11, "control");
        let back = open(&mut stage, 10, 0, "back");
        write(&mut stage, 0, 30_016);
        let hold = stage.next(10, first);
        assert_eq!(stage.record(hold).step, 0);
        write(&mut stage, 1, 36_032);
        let ahead = stage.next(10, first);
        assert!(stage.waits(ahead), "{policy:?}");
        let last = stage.next(11, control);
        let writer = writer_waits.then(|| stage.next(0, back));
        stage.pass(1000);
        for ticket in [Some(ahead), Some(last), writer].into_iter().flatten() {
            let answer = stage.answer(ticket);
            let is_circle = matches!(answer, Answer::Failed(Fault::Circle { .. }));
            assert_eq!(is_circle, in_circle, "{policy:?}: {answer:?}");
        }
        if !in_circle && policy != Policy::DropNewest {
            let ahead = stage.next(10, first);
            write(&mut stage, 2, 8_000);
            assert_eq!(stage.record(ahead).step, 2, "{policy:?}");
        }
    }
}

fn any_streams(random: &mut Rng, processes: u32) -> Vec<Sketch> {
    let some = |random: &mut Rng, most: usize| {
        let mut all: Vec<u32> = (0..processes).collect();
        random.shuffle(&mut all);
        all.truncate(random.usize(1..=most));
        all
    };
    let number = random.usize(1..4);
    let stream = |number: usize, random: &mut Rng| Sketch {
        name: format!("s{number}"),
        writers: some(random, 2),
        groups: (0..random.usize(1..3))
            .map(|_| (some(random, 2), random.u64(1..3)))
            .collect(),
    };
    (0..number).map(|number| stream(number, random)).collect()
}

/// By chance: whoever is said to wait in a circle is never answered, whatever the others do; and
/// where all wait, all are told.
#[test]
fn who_is_in_a_circle_is_never_answered() {
    let (mut some, mut all, mut ran) = (0, 0, 0);
    fuzz::rounds(
        "stream::circles::who_is_in_a_circle_is_never_answered",
        4000,
        |_, random| {
            ran += 1;
            let processes = random.u32(1..6);
            let streams = any_streams(random, processes);
            let acts = random.u32(1..40);
            let seed = random.u64(..);
            let world = || {
                let mut random = Rng::with_seed(seed);
                let mut world = World::new(processes, &streams, &[]);
                for _ in 0..acts {
                    world.anything(&mut random);
                }
                (world, random)
            };
            let (early, _) = world();
            let waiting = (0..processes)
                .filter(|process| early.waits(*process))
                .count();
            let told = early.late();
            let in_circles: Vec<u32> = told
                .keys()
                .copied()
                .filter(|at| is_circle(&told, *at))
                .collect();
            if waiting == processes as usize {
                assert_eq!(in_circles.len(), waiting, "all wait: {told:?}");
                all += 1;
            }
            let (mut late, mut random) = world();
            let tickets = |world: &World| -> Vec<Ticket> {
                let waits = in_circles
                    .iter()
                    .map(|at| world.processes[*at as usize].waits);
                waits.map(|waits| waits.expect("it waits").0).collect()
            };
            let before = tickets(&late);
            some += u32::from(!in_circles.is_empty() && waiting < processes as usize);
            for _ in 0..200 {
                late.anything(&mut random);
                assert_eq!(tickets(&late), before, "{told:?} of {streams:?}");
            }
        },
    );
    // All of them, and not one by its seed.
    assert!(
        ran < 4000 || some > 20 && all > 20,
        "{some} and {all} circles"
    );
}
