//! The first messages on a connection of two agents: the caller, the agent it means, and what each
//! of them already knows.

use super::id::{NodeId, NodeLife};
use super::links::{Holder, Line, Up};
use super::message::{Message, Nonsense, VERSION};
use super::{Action, Link, Membership, Refusal, WhyClosed, send};

impl Membership {
    /// A connection of this agent is established: send the greeting.
    pub(super) fn connected(&mut self, link: Link) {
        let Some(Holder::Node(id)) = self.links.get(&link).copied() else {
            return;
        };
        let message = match self.life {
            None => Message::Join {
                version: VERSION,
                name: &self.name,
                address: &self.address,
            },
            Some(own) => self.hello(own, id),
        };
        self.out.push(send(link, &message));
    }

    fn hello(&self, from: NodeLife, to: NodeId) -> Message<'static> {
        let node = self.nodes.get(&to);
        let nobody = NodeLife {
            node: to,
            incarnation: 0,
        };
        Message::Hello {
            version: VERSION,
            domain: self.domain,
            from,
            to: node.map_or(nobody, |node| node.life(to)),
            nodes: self.epoch,
            slots: node.map_or(0, |node| node.mirror.seen()),
        }
    }

    /// Handles the first message of a caller.
    pub(super) fn greeted(&mut self, link: Link, message: Message<'_>) -> Result<(), Nonsense> {
        match message {
            Message::Join {
                version,
                name,
                address,
            } => self.join(link, version, (name, address)),
            Message::Hello {
                version,
                domain,
                from,
                to,
                nodes,
                slots,
            } => {
                if let Err(refusal) = self.recognise(version, domain, from, to) {
                    self.refuse(link, refusal);
                    return Ok(());
                }
                let up = Up::new(link, self.clock, nodes, slots, self)?;
                self.hang_up(from.node, WhyClosed::CalledAgain);
                self.out.push(send(link, &self.hello(to, from.node)));
                self.connect_line(from.node, up);
                Ok(())
            }
            _ => Err(Nonsense("a caller that does not say who it is")),
        }
    }

    /// Checks that a caller is a member and means this agent.
    fn recognise(
        &self,
        version: u32,
        domain: u64,
        from: NodeLife,
        to: NodeLife,
    ) -> Result<(), Refusal> {
        if version != VERSION {
            return Err(Refusal::Version);
        }
        let own = self.life.ok_or(Refusal::NotYet)?;
        if domain != self.domain {
            return Err(Refusal::OtherDomain);
        }
        if to != own {
            return Err(Refusal::OtherNode);
        }
        let known = self.nodes.get(&from.node).ok_or(Refusal::NotYet)?;
        if known.incarnation < from.incarnation {
            return Err(Refusal::NotYet);
        }
        if !self.is_member(from) {
            return Err(Refusal::Gone);
        }
        if known.line == Line::Broken || from.node < own.node {
            return Err(Refusal::Distrusted);
        }
        Ok(())
    }

    /// Handles the answer of a node that this agent called.
    pub(super) fn answered(
        &mut self,
        link: Link,
        id: NodeId,
        message: Message<'_>,
    ) -> Result<(), Nonsense> {
        match (message, self.life) {
            (Message::Welcome { domain, life, name }, None) => {
                // The head has admitted this node.
                if life.node == NodeId::HEAD || life.incarnation > NodeLife::LAST {
                    return Err(Nonsense("a welcome to what is no number"));
                }
                self.domain = domain;
                self.life = Some(life);
                self.out.push(Action::Admitted { domain, life });
                self.out.push(Action::NodeJoined {
                    epoch: 0,
                    life: NodeLife::HEAD,
                    name: name.into(),
                    address: self
                        .nodes
                        .get(&id)
                        .map_or_else(Box::default, |n| n.address.clone()),
                });
                let up = Up::new(link, self.clock, 0, 0, self)?;
                self.connect_line(id, up);
                Ok(())
            }
            (
                Message::Hello {
                    version: VERSION,
                    domain,
                    from,
                    to,
                    nodes,
                    slots,
                },
                Some(own),
            ) => {
                let incarnation = self.nodes.get(&id).map(|node| node.incarnation);
                if domain != self.domain
                    || to != own
                    || from.node != id
                    || Some(from.incarnation) != incarnation
                {
                    return Err(Nonsense("an answer of somebody else"));
                }
                let up = Up::new(link, self.clock, nodes, slots, self)?;
                self.connect_line(id, up);
                Ok(())
            }
            (Message::Refused(refusal), _) => {
                self.was_refused(link, id, refusal);
                Ok(())
            }
            _ => Err(Nonsense("no answer to a greeting")),
        }
    }

    /// Handles a refusal. Only a refusal by the head ends anything; from others, it means that the
    /// connection is down.
    pub(super) fn was_refused(&mut self, link: Link, id: NodeId, refusal: Refusal) {
        let why = WhyClosed::RefusedBy(refusal);
        self.out.push(Action::Close { link, why });
        self.closed(link);
        if id != NodeId::HEAD {
            return;
        }
        match (refusal, self.life) {
            (Refusal::NameTaken | Refusal::NotYet, _) => {}
            (refusal, None) => self.end(Action::NotAdmitted(refusal)),
            (Refusal::Gone, Some(_)) => self.dismissed(),
            (_, Some(_)) => self.lose_head(),
        }
    }

    pub(super) fn refuse(&mut self, link: Link, refusal: Refusal) {
        self.out.push(send(link, &Message::Refused(refusal)));
        let why = WhyClosed::Refused(refusal);
        self.out.push(Action::Close { link, why });
        self.closed(link);
    }
}
