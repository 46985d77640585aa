//! A writer rank of the simulator: writes its part of every step, and goes on where it was when it
//! is started again.

use crate::simulated::world::World;
use samite_stage::protocol::{
    Answer, BlockOffsets, BlockStoreInfo, BufferAt, Fault, LayoutHash, LayoutRef, Part, Peer,
    Request, Slot, Step, Ticket, Want, WriterId,
};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    /// Computes; then begins the step.
    Computing,
    Beginning,
    Reserving,
    /// Has its buffers; then commits.
    Writing,
    Committing,
    Closing,
    Done,
}

pub(crate) struct WriterRank {
    pub(crate) rank: u32,
    peer: Peer,
    stage: Stage,
    id: Option<WriterId>,
    step: Step,
    tickets: u64,
    block_stores: Vec<BlockStoreInfo>,
    buffers: Vec<BufferAt>,
    told: Option<LayoutHash>,
    failures: u32,
    /// It keeps the step that it commits now.
    keeps: bool,
    /// The buffers of the step that it committed last, if it keeps it, each with its copies.
    kept: Option<(Step, Vec<Slot<BufferAt>>)>,
}

impl WriterRank {
    pub(crate) fn start(world: &mut World, peer: Peer, rank: u32) -> Self {
        let mut writer = WriterRank {
            rank,
            peer,
            stage: Stage::Opening,
            id: None,
            step: 0,
            tickets: 0,
            block_stores: Vec::new(),
            buffers: Vec::new(),
            told: None,
            failures: 0,
            keeps: false,
            kept: None,
        };
        let request = Request::OpenWriter {
            ticket: writer.ticket(),
            stream: "field".into(),
            program: "writer".into(),
            rank,
            size: world.plan.writers,
            config: Box::new(world.plan.config.clone()),
            timeout: 4000,
            gives_up: false,
        };
        world.say(peer, request);
        writer
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Closing | Stage::Done)
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn id(&self) -> WriterId {
        self.id.expect("it is open")
    }

    /// The buffers that the step needs: every slot on `replicas` block stores, which wander with
    /// the step.
    fn wants(&self, world: &World) -> Vec<Want> {
        let packing = world.plan.layout(self.step, self.rank).packing().unwrap();
        let block_stores = self.block_stores.len().max(1);
        let copies = world.plan.replicas.min(block_stores);
        let mut wants = Vec::new();
        for (slot, &bytes) in packing.slots.iter().enumerate() {
            for copy in 0..copies {
                let block_store =
                    self.block_stores[(slot + copy + self.step as usize) % block_stores].peer;
                wants.push(Want { block_store, bytes });
            }
        }
        wants
    }

    fn compute(&mut self, world: &mut World) {
        self.stage = Stage::Computing;
        let time = world.rng.u64(0..40);
        world.timer(self.peer, time);
    }

    pub(crate) fn on_timer(&mut self, world: &mut World) {
        match self.stage {
            Stage::Computing if self.step == world.plan.steps => self.close(world, "wrote all"),
            Stage::Computing if world.rng.u8(..) < 2 => self.close(world, "closed early"),
            Stage::Computing if world.rng.u8(..) < 2 => self.give_up(world, "gave up"),
            Stage::Computing => {
                let wants = if world.rng.bool() {
                    self.wants(world)
                } else {
                    Vec::new()
                };
                let all = !wants.is_empty();
                self.stage = if all {
                    Stage::Reserving
                } else {
                    Stage::Beginning
                };
                let request = Request::Begin {
                    ticket: self.ticket(),
                    writer: self.id(),
                    step: self.step,
                    wants,
                    timeout: world.plan.timeout,
                };
                world.say(self.peer, request);
            }
            Stage::Writing if world.rng.u8(..) < 10 => {
                world.seen.add("aborted");
                self.again(world);
            }
            Stage::Writing => self.commit(world),
            _ => {}
        }
    }

    /// Gives back what it has, and begins the step again.
    fn again(&mut self, world: &mut World) {
        world.say(self.peer, Request::Abort { writer: self.id() });
        self.compute(world);
    }

    fn close(&mut self, world: &mut World, why: &'static str) {
        world.seen.add(why);
        self.stage = Stage::Closing;
        world.kept.remove(&self.peer);
        let (ticket, writer) = (self.ticket(), self.id());
        world.closes(self.peer, ticket, writer);
        world.say(self.peer, Request::CloseWriter { ticket, writer });
    }

    /// As an error or a panic does.
    fn give_up(&mut self, world: &mut World, why: &'static str) {
        world.seen.add(why);
        self.stage = Stage::Done;
        world.kept.remove(&self.peer);
        if let Some(writer) = self.id {
            world.say(self.peer, Request::LeaveWriter { writer });
        }
    }

    fn commit(&mut self, world: &mut World) {
        let layout = Arc::new(world.plan.layout(self.step, self.rank));
        let copies = world.plan.replicas.min(self.block_stores.len());
        let slots = self.buffers.chunks(copies);
        let slots: Vec<Slot<_>> = slots
            .map(|copies| copies.iter().map(|at| at.buffer).collect())
            .collect();
        let hash = layout.hash();
        let told = if self.told == Some(hash) {
            LayoutRef::Same(hash)
        } else {
            LayoutRef::New(layout.clone())
        };
        let places = if world.rng.bool() {
            BlockOffsets::Packed
        } else {
            BlockOffsets::Listed(layout.packing().unwrap().offsets.into())
        };
        let part = Part {
            step: self.step,
            layout: told,
            slots,
            places,
            attributes: Vec::new(),
            checksum: self.step ^ world.plan.seed,
        };
        self.told = Some(hash);
        self.stage = Stage::Committing;
        self.keeps = world.rng.u8(..) < world.plan.keeps;
        // Its bytes are those that it had when it was committed; from now on it is not read.
        self.look_back(world);
        world.kept.remove(&self.peer);
        let keep = self.keeps;
        let ticket = self.ticket();
        let writer = self.id();
        world.say(
            self.peer,
            Request::Commit {
                ticket,
                writer,
                part,
                keep,
            },
        );
    }

    fn fill(&mut self, world: &mut World) {
        let layout = world.plan.layout(self.step, self.rank);
        let packing = layout.packing().unwrap();
        let copies = world.plan.replicas.min(self.block_stores.len());
        let mut offsets = packing.offsets.iter();
        for variable in &layout.variables {
            for (block, &offset) in variable.blocks.iter().zip(&mut offsets) {
                let bytes = world.plan.content(variable, self.step, &block.region);
                for copy in 0..copies {
                    let at = self.buffers[block.slot as usize * copies + copy];
                    world.write(self.peer, &at, offset, &bytes);
                }
            }
        }
    }

    /// The step that this rank keeps is there, byte by byte, while it writes the next one.
    fn look_back(&self, world: &mut World) {
        let Some((step, slots)) = &self.kept else {
            return;
        };
        let layout = world.plan.layout(*step, self.rank);
        let packing = layout.packing().unwrap();
        let mut offsets = packing.offsets.iter();
        for variable in &layout.variables {
            for (block, &offset) in variable.blocks.iter().zip(&mut offsets) {
                let expected = world.plan.content(variable, *step, &block.region);
                for at in &slots[block.slot as usize] {
                    if let Some(bytes) = world.read_kept(at, offset, expected.len()) {
                        assert!(bytes == expected, "{} of step {step}", variable.name);
                        world.seen.add("kept step read");
                    }
                }
            }
        }
    }

    /// The coordinator has taken the commit: what was kept before is not any more, this step is if
    /// it was to be.
    fn committed(&mut self, world: &mut World) {
        let copies = world.plan.replicas.min(self.block_stores.len()).max(1);
        let slots = std::mem::take(&mut self.buffers);
        self.kept = self.keeps.then(|| {
            let slots = slots.chunks(copies).map(Slot::from_slice);
            (self.step, slots.collect())
        });
        self.claim(world);
    }

    /// Nobody may free what it keeps.
    fn claim(&self, world: &mut World) {
        if let Some((_, slots)) = &self.kept {
            let buffers = slots.iter().flatten().map(|at| at.buffer);
            world.kept.insert(self.peer, buffers.collect());
        }
    }

    pub(crate) fn on_answer(&mut self, world: &mut World, answer: Answer) {
        match (answer, self.stage) {
            (
                Answer::Writing {
                    writer,
                    committed,
                    next,
                    block_stores,
                },
                Stage::Opening,
            ) => {
                assert!(next == committed || next == committed + 1);
                self.id = Some(writer);
                self.block_stores = block_stores;
                // From a checkpoint of its own, which may be older than what is committed.
                self.step = committed.saturating_sub(world.rng.u64(0..3));
                if next > 0 {
                    world.seen.add("writer came back");
                }
                self.compute(world);
            }
            (Answer::Begun { buffers }, Stage::Beginning) => {
                assert!(buffers.is_empty());
                self.stage = Stage::Reserving;
                let wants = self.wants(world);
                let request = Request::Reserve {
                    ticket: self.ticket(),
                    writer: self.id(),
                    wants,
                    timeout: world.plan.timeout,
                };
                world.say(self.peer, request);
            }
            (Answer::Begun { buffers }, Stage::Reserving) => {
                self.buffers = buffers;
                self.look_back(world);
                self.fill(world);
                self.stage = Stage::Writing;
                let time = world.rng.u64(0..20);
                world.timer(self.peer, time);
            }
            (Answer::Already { next }, Stage::Beginning | Stage::Reserving) => {
                assert!(next > self.step);
                self.step += 1;
                self.compute(world);
            }
            (Answer::Committed, Stage::Committing) => {
                let told = world.told.entry((self.id().stream, self.step));
                told.or_default().insert(self.rank);
                self.committed(world);
                self.step += 1;
                self.failures = 0;
                self.compute(world);
            }
            (
                Answer::Closed | Answer::Failed(Fault::WriterFailed { .. } | Fault::NotOpen),
                Stage::Closing,
            ) => {
                self.stage = Stage::Done;
            }
            (Answer::Failed(Fault::ClosesEarly { .. }), Stage::Closing) => {
                self.give_up(world, "closed early, and gave up");
            }
            (Answer::Waiting(fault), _) => {
                world.seen.add("told to wait on");
                self.on_fault(world, fault);
            }
            (Answer::Failed(fault), _) => self.on_fault(world, fault),
            (answer, stage) => panic!("{answer:?} while {stage:?}"),
        }
    }

    fn on_fault(&mut self, world: &mut World, fault: Fault) {
        if self.stage == Stage::Committing {
            // It was not taken: the step before is kept as before.
            self.claim(world);
        }
        match fault {
            Fault::NoBlockStore { block_store } | Fault::BlockStoreLost { block_store, .. } => {
                assert!(
                    !world.block_store_lives(block_store.id),
                    "{block_store} lives"
                );
                self.block_stores.retain(|known| block_store != known.peer);
                self.told = None;
                self.again(world);
            }
            Fault::NobodyReads { .. }
            | Fault::ReadersBehind { .. }
            | Fault::WriterBehind { .. }
            | Fault::NoMemory { .. }
            | Fault::NoBuffer { .. }
            | Fault::BlockStoreSilent { .. }
            | Fault::NoStep { .. }
            | Fault::BlockStoreFull { .. }
            | Fault::NumbersUsedUp { .. } => {
                // A precious step may leave too little memory for ever; then one rank waits for
                // memory, the others for it.
                let patient = world.plan.timeout >= 60_000 && !world.plan.config.precious_first;
                let never = matches!(
                    fault,
                    Fault::ReadersBehind { .. } | Fault::WriterBehind { .. }
                );
                assert!(!(patient && never), "longer than any lease: {fault}");
                self.failures += 1;
                if self.failures > 8 {
                    self.give_up(world, "writer gave up");
                } else {
                    self.again(world);
                }
            }
            Fault::TooLarge { .. }
            | Fault::TooManyBuffers { .. }
            | Fault::RankClosed { .. }
            | Fault::WriterFailed { .. }
            | Fault::NotOpen => self.give_up(world, "writer ended by an error"),
            Fault::Over { .. } | Fault::RankTaken { .. } if self.stage == Stage::Opening => {
                self.stage = Stage::Done
            }
            fault => panic!(
                "rank {} in {:?} of step {}: {fault:?}",
                self.rank, self.stage, self.step
            ),
        }
    }
}
