//! A rank of a reader group of the simulator: takes steps, and compares every byte, when it gets
//! them and before it lets them go.

use crate::simulated::sequence::Life;
use crate::simulated::world::World;
use samite_stage::protocol::{
    Answer, BlockOffsets, Fault, Layout, LayoutHash, Layouts, Peer, ReaderId, Request, Step,
    StepRecord, Ticket,
};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    Opening,
    /// Waits for a step; one by number, or the next.
    Asking(bool),
    Holding(Ticket, StepRecord),
    /// Waits before it asks again.
    Resting,
    Done,
}

pub(crate) struct ReaderRank {
    pub(crate) group: usize,
    pub(crate) rank: u32,
    peer: Peer,
    stage: Stage,
    id: Option<ReaderId>,
    tickets: u64,
    layouts: Option<(LayoutHash, Vec<Arc<Layout>>)>,
    last: Option<Step>,
    failures: u32,
    /// Which life it is in the log of its group.
    life: usize,
}

impl ReaderRank {
    pub(crate) fn start(world: &mut World, peer: Peer, group: usize, rank: u32) -> Self {
        let mut reader = ReaderRank {
            group,
            rank,
            peer,
            stage: Stage::Opening,
            id: None,
            tickets: 0,
            layouts: None,
            last: None,
            failures: 0,
            life: 0,
        };
        reader.open(world);
        reader
    }

    pub(crate) fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn open(&mut self, world: &mut World) {
        self.stage = Stage::Opening;
        let mut reader = world.plan.programs[self.group].reader.clone();
        reader.rank = self.rank;
        let request = Request::OpenReader {
            ticket: self.ticket(),
            stream: "field".into(),
            reader: Box::new(reader),
            timeout: 500,
            gives_up: false,
        };
        world.say(self.peer, request);
    }

    fn ask(&mut self, world: &mut World) {
        let reader = self.id.expect("it is open");
        let ticket = self.ticket();
        let timeout = world.plan.timeout;
        let by_number = world.plan.programs[self.group].by_number && world.rng.u8(0..4) == 0;
        self.stage = Stage::Asking(by_number);
        let request = if by_number {
            let step = world.rng.u64(0..=self.last.map_or(0, |last| last + 1));
            Request::At {
                ticket,
                reader,
                step,
                timeout,
            }
        } else {
            Request::Next {
                ticket,
                reader,
                timeout,
            }
        };
        world.say(self.peer, request);
    }

    fn rest(&mut self, world: &mut World) {
        self.stage = Stage::Resting;
        let time = world.rng.u64(0..20);
        world.timer(self.peer, time);
    }

    fn close(&mut self, world: &mut World) {
        self.stage = Stage::Done;
        if let Some(reader) = self.id {
            world.say(self.peer, Request::CloseReader { reader });
        }
    }

    pub(crate) fn on_timer(&mut self, world: &mut World) {
        match self.stage.clone() {
            Stage::Holding(ticket, record) => {
                self.verify(world, &record);
                world.held.remove(&(self.peer, ticket));
                let reader = self.id.expect("it is open");
                world.say(
                    self.peer,
                    Request::Release {
                        reader,
                        hold: ticket,
                        read: 0,
                    },
                );
                self.rest(world);
            }
            Stage::Resting if self.id.is_some() => self.ask(world),
            Stage::Resting => self.open(world),
            _ => {}
        }
    }

    pub(crate) fn on_answer(&mut self, world: &mut World, ticket: Ticket, answer: Answer) {
        match (answer, self.stage.clone()) {
            (Answer::Reading { reader, .. }, Stage::Opening) => {
                self.id = Some(reader);
                self.life = world.log(reader, self.group).open();
                if self.life >= world.plan.programs[self.group].reader.size as usize {
                    world.seen.add("reader came back");
                }
                self.ask(world);
            }
            (Answer::Step(record), Stage::Asking(by_number)) => {
                self.got(world, ticket, record, by_number)
            }
            (Answer::End(end), Stage::Asking(by_number)) => {
                let reader = self.id.expect("it is open");
                world.is_end(reader.stream, end);
                let committed = world.committed[&reader.stream];
                world.seen.add("end of stream");
                if !by_number {
                    self.life_of(world).ended = Some(committed);
                }
                self.close(world);
            }
            (Answer::Waiting(fault), stage) => {
                world.seen.add("told to wait on");
                self.on_fault(world, fault, stage);
            }
            (Answer::Failed(fault), stage) => self.on_fault(world, fault, stage),
            (answer, stage) => panic!("{answer:?} while {stage:?}"),
        }
    }

    fn life_of<'a>(&self, world: &'a mut World) -> &'a mut Life {
        let reader = self.id.expect("it is open");
        &mut world.log(reader, self.group).lives[self.life]
    }

    fn on_fault(&mut self, world: &mut World, fault: Fault, stage: Stage) {
        self.failures += 1;
        match (fault, stage) {
            (Fault::NoStream { .. }, Stage::Opening) if self.failures < 8 => self.rest(world),
            (
                Fault::NoStream { .. } | Fault::Gone { .. } | Fault::RankTaken { .. },
                Stage::Opening,
            ) => self.stage = Stage::Done,
            (Fault::Damaged { step, block_stores }, Stage::Asking(by_number)) => {
                assert!(
                    block_stores
                        .iter()
                        .all(|block_store| !world.block_store_lives(block_store.id))
                );
                if !by_number {
                    self.life_of(world).steps.push(step);
                    self.last = Some(step);
                }
                self.rest(world);
            }
            (Fault::Gone { .. }, Stage::Asking(true)) => self.rest(world),
            (Fault::NoStep { .. }, Stage::Asking(_)) if self.failures < 40 => self.rest(world),
            (Fault::NoStep { .. }, Stage::Asking(_)) => self.close(world),
            (fault, stage) => panic!("{fault:?} while {stage:?}"),
        }
    }

    fn got(&mut self, world: &mut World, ticket: Ticket, record: StepRecord, by_number: bool) {
        match &record.layouts {
            Layouts::New { hash, layouts } => self.layouts = Some((*hash, layouts.clone())),
            Layouts::Same(hash) => {
                world.seen.add("layouts by hash");
                assert_eq!(self.layouts.as_ref().map(|(known, _)| *known), Some(*hash));
            }
        }
        let buffers = record.parts.iter().flat_map(|part| &part.slots).flatten();
        let buffers = buffers.map(|at| at.buffer).collect();
        world.held.insert((self.peer, ticket), buffers);
        self.verify(world, &record);
        if by_number {
            world.seen.add("step by number");
        } else {
            self.life_of(world).steps.push(record.step);
            self.last = Some(record.step);
            world.seen.add("step");
        }
        self.stage = Stage::Holding(ticket, record);
        let slow = world.plan.programs[self.group].slow;
        let time = world.rng.u64(0..=slow);
        world.timer(self.peer, time);
    }

    /// Every byte of every copy of every block, and that the blocks are all there are.
    fn verify(&self, world: &mut World, record: &StepRecord) {
        let Some((_, layouts)) = &self.layouts else {
            panic!("a step without layouts");
        };
        assert_eq!(record.parts.len(), world.plan.writers as usize);
        for (rank, (layout, part)) in layouts.iter().zip(record.parts.iter()).enumerate() {
            assert_eq!(
                **layout,
                world.plan.layout(record.step, rank as u32),
                "the layout of step {}",
                record.step
            );
            let packed = layout.packing().unwrap().offsets;
            let offsets = match &part.places {
                BlockOffsets::Packed => &packed[..],
                BlockOffsets::Listed(offsets) => offsets,
            };
            let mut offsets = offsets.iter();
            for variable in &layout.variables {
                for (block, &offset) in variable.blocks.iter().zip(&mut offsets) {
                    let expected = world.plan.content(variable, record.step, &block.region);
                    let copies = &part.slots[block.slot as usize];
                    assert!(!copies.is_empty());
                    for at in copies {
                        if let Some(bytes) = world.read(at, offset, expected.len()) {
                            assert!(
                                bytes == expected,
                                "{} of step {} of rank {rank}",
                                variable.name,
                                record.step
                            );
                        }
                    }
                }
            }
        }
    }
}
