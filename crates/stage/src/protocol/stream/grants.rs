//! Memory for a step: what a rank requests from admission control, and the buffers that it gets.

use super::buffers::State;
use super::writers::{Granted, PendingRequest, Stage};
use super::{Action, Stream};
use crate::protocol::admission::{Decision, MemoryRequest, RequestId};
use crate::protocol::{Answer, BufferAt, Fault, Lack, Peer, Step, Ticket, Want};

impl Stream {
    /// Requests what a rank wants from admission control; nothing is granted at once.
    pub(super) fn ask(&mut self, rank: usize) {
        let (has, keeps) = (self.open_bytes(), self.kept_bytes(rank));
        let number = self.writers.next_ask;
        let Some(asking) = &mut self.writers.ranks[rank].asking else {
            return;
        };
        if asking.wants.is_empty() {
            return self.begun(rank, Vec::new());
        }
        let request = RequestId {
            stream: self.id,
            rank: rank as u32,
            number,
        };
        asking.stage = Stage::Asked(request, None);
        let wants = asking.wants.clone();
        self.writers.next_ask += 1;
        // Whether steps can really be dropped is determined when needed.
        self.out.push(Action::Request(MemoryRequest {
            id: request,
            wants,
            has,
            keeps,
            yields: true,
        }));
    }

    /// Handles a decision of admission control. After a grant or a refusal, the caller settles the
    /// stream: once for all decisions of a moment, of which there may be one per rank.
    pub fn decision(&mut self, decision: Decision) {
        match decision {
            Decision::Granted(request) => self.granted(request),
            Decision::Wait(request, short) | Decision::Spill(request, short) => {
                if let Some(asking) = self.asking_of(request) {
                    asking.stage = Stage::Asked(request, Some(short));
                }
            }
            Decision::Refused(request, fault) => {
                if self.asking_of(request).is_some()
                    && let Some(asking) = self.take_asking(request.rank as usize)
                {
                    self.fail(asking.peer, asking.ticket, fault);
                }
            }
        }
    }

    fn asking_of(&mut self, request: RequestId) -> Option<&mut PendingRequest> {
        let rank = self.writers.ranks.get_mut(request.rank as usize)?;
        let is_it = |asking: &&mut PendingRequest| matches!(asking.stage, Stage::Asked(asked, _) if asked == request);
        rank.asking.as_mut().filter(is_it)
    }

    fn granted(&mut self, request: RequestId) {
        let rank = request.rank as usize;
        let asking = self.asking_of(request);
        // A withdrawn request is removed from admission control before it can be granted.
        let asking = asking.expect("a grant belongs to a request");
        let (peer, wants) = (asking.peer, asking.wants.clone());
        let buffers = wants
            .iter()
            .map(|want| self.allocate(want.block_store, want.bytes, peer));
        let buffers: Vec<u64> = buffers.collect();
        if let Some(asking) = &mut self.writers.ranks[rank].asking {
            asking.stage = Stage::Allocating(buffers, wants.len() as u32);
        }
    }

    /// Returns the rank whose request waits for that buffer.
    fn rank_allocating(&self, number: u64) -> Option<usize> {
        self.writers.ranks.iter().position(|rank| {
            let stage = rank.asking.as_ref().map(|asking| &asking.stage);
            matches!(stage, Some(Stage::Allocating(buffers, _)) if buffers.contains(&number))
        })
    }

    /// Returns the rank whose last request waited for that buffer.
    fn rank_granted(&self, number: u64) -> Option<usize> {
        self.writers.ranks.iter().position(|rank| {
            let granted = rank.granted.as_ref();
            granted.is_some_and(|granted| granted.buffers.contains(&number))
        })
    }

    pub(super) fn buffer_held(&mut self, number: u64, block_store: Peer) {
        if let Some(rank) = self.rank_granted(number) {
            if let Some(granted) = &mut self.writers.ranks[rank].granted {
                granted.missing -= 1;
            }
            return self.out.push(Action::HasWorked(block_store));
        }
        let Some(rank) = self.rank_allocating(number) else {
            return;
        };
        let Some(PendingRequest {
            stage: Stage::Allocating(buffers, missing),
            since,
            ..
        }) = &mut self.writers.ranks[rank].asking
        else {
            return;
        };
        // Memory that was available at once has not delayed other requests.
        if *since < self.now {
            self.out.push(Action::HasWorked(block_store));
        }
        *missing -= 1;
        if *missing == 0 {
            let buffers = std::mem::take(buffers);
            self.begun(rank, buffers);
        }
    }

    /// Answers a request for a step or buffers that has everything.
    fn begun(&mut self, rank: usize, buffers: Vec<u64>) {
        let Some(asking) = self.take_asking(rank) else {
            return;
        };
        let state = &mut self.writers.ranks[rank];
        state.begun = true;
        state.buffers.extend(&buffers);
        let at = |&number: &u64| {
            let buffer = &self.store.buffers[&number];
            BufferAt {
                buffer: self.buffer_id(number),
                block_store: buffer.block_store,
                handle: buffer.handle,
                bytes: buffer.bytes,
                on_disk: false,
            }
        };
        let buffers = buffers.iter().map(at).collect();
        self.answer(asking.peer, asking.ticket, Answer::Begun { buffers });
    }

    pub(super) fn buffer_refused(&mut self, number: u64, lack: Lack) {
        let Some(buffer) = self.store.buffers.remove(&number) else {
            return;
        };
        self.out.push(Action::Freed(
            self.buffer_id(number),
            buffer.block_store,
            buffer.bytes,
        ));
        let block_store = buffer.block_store;
        let fault = match lack {
            Lack::Memory => Fault::BlockStoreFull { block_store },
            Lack::Numbers(numbers) => Fault::NumbersUsedUp {
                block_store,
                numbers,
            },
        };
        self.allocation_failed(number, fault);
    }

    pub(super) fn asked_buffer_lost(&mut self, number: u64, block_store: Peer) {
        self.allocation_failed(number, Fault::NoBlockStore { block_store });
    }

    fn allocation_failed(&mut self, number: u64, fault: Fault) {
        if let Some(rank) = self.rank_granted(number) {
            // Its next request asks for all of them again.
            return self.drop_granted(rank);
        }
        if let Some(rank) = self.rank_allocating(number)
            && let Some((peer, ticket)) = self.stop_asking(rank)
        {
            self.fail(peer, ticket, fault);
        }
    }

    /// Removes and returns the pending request of a rank. Requests end only here.
    pub(super) fn take_asking(&mut self, rank: usize) -> Option<PendingRequest> {
        self.writers.ranks[rank].asking.take()
    }

    /// Keeps the buffers that block stores are allocating for a rank, which will request them
    /// again. Returns the peer and ticket to answer.
    pub(super) fn set_aside(&mut self, rank: usize) -> Option<(Peer, Ticket)> {
        let asking = self.take_asking(rank)?;
        let answered = (asking.peer, asking.ticket);
        self.writers.ranks[rank].granted = asking.into_granted();
        Some(answered)
    }

    /// Returns what a rank was granted, if it requests the same again. Frees it if it requests
    /// something else, or cannot have it any more.
    pub(super) fn take_granted(
        &mut self,
        rank: usize,
        begin: Option<Step>,
        wants: &[Want],
    ) -> Option<Granted> {
        let is_over = begin.is_some_and(|step| self.closed_without(step).is_some());
        let is_there = |number: &u64| {
            let buffer = self.store.buffers.get(number);
            buffer.is_some_and(|buffer| buffer.state != State::Lost)
        };
        let granted = &mut self.writers.ranks[rank].granted;
        let again = granted.take_if(|granted| {
            !is_over && granted.is_for(begin, wants) && granted.buffers.iter().all(is_there)
        });
        self.drop_granted(rank);
        again
    }

    /// Lets a rank wait for the rest of what it has been granted.
    pub(super) fn go_on(&mut self, rank: usize, granted: Granted) {
        if granted.missing == 0 {
            return self.begun(rank, granted.buffers);
        }
        if let Some(asking) = &mut self.writers.ranks[rank].asking {
            asking.stage = Stage::Allocating(granted.buffers, granted.missing);
        }
    }

    /// Frees what a rank was granted and does not want any more.
    pub(super) fn drop_granted(&mut self, rank: usize) {
        let granted = self.writers.ranks[rank].granted.take();
        for number in granted.into_iter().flat_map(|granted| granted.buffers) {
            self.free_buffer(number);
        }
    }

    /// Withdraws the request of a rank. Returns the peer and ticket to answer.
    pub(super) fn stop_asking(&mut self, rank: usize) -> Option<(Peer, Ticket)> {
        let asking = self.take_asking(rank)?;
        match asking.stage {
            Stage::Queued => {}
            Stage::Asked(request, _) => self.out.push(Action::Withdraw(request)),
            Stage::Allocating(buffers, _) => buffers
                .into_iter()
                .for_each(|number| self.free_buffer(number)),
        }
        Some((asking.peer, asking.ticket))
    }
}
