//! A client: subscribes at some node, leaves, and returns with its position, also elsewhere.

use std::time::Duration;

use tokio::sync::oneshot;

use super::world::{Phase, World};
use crate::rng::Rng;

/// Each request is answered within this time.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(120);

impl World {
    /// Runs a client until the end.
    pub(crate) async fn follow(self, client: usize, mut rng: Rng) {
        let env = self.executor.env();
        let mut phase = self.phase.subscribe();
        let mut attempt = 0;
        while *phase.borrow() != Phase::Left {
            attempt += 1;
            let busy = *phase.borrow() == Phase::Busy;
            let subscribed = self.subscribe(client, attempt, busy, &mut rng).await;
            let Some((node, ended)) = subscribed else {
                env.sleep(Duration::from_millis(rng.range(20, 500))).await;
                continue;
            };
            let stay = self.plan.users.stay.mul_f64(rng.below(1000) as f64 / 1000.0);
            if self.plan.shape.members > 0
                && rng.one_in(4)
                && let Some(node) = self.node(node)
            {
                node.sessions.change(client);
            }
            tokio::select! {
                biased;
                _ = ended => {}
                () = env.sleep(stay), if busy => {}
                _ = phase.wait_for(|phase| *phase == Phase::Left || *phase == Phase::Busy && !busy) => {}
            }
            if let Some(node) = self.node(node) {
                node.sessions.leave(client, Some(attempt));
            }
            if *phase.borrow() == Phase::Busy {
                env.sleep(self.plan.users.pause.mul_f64(rng.below(1000) as f64 / 1000.0)).await;
            }
        }
    }

    /// Subscribes at some node; `None`: it did not succeed. Returns the node, and what completes at
    /// the end of the subscription.
    async fn subscribe(
        &self,
        client: usize,
        attempt: u64,
        busy: bool,
        rng: &mut Rng,
    ) -> Option<(usize, oneshot::Receiver<()>)> {
        let at = rng.below(self.plan.shape.nodes as u64) as usize;
        let node = self.node(at)?;
        let position = self.ledger.lock().clients[client].position;
        // Some clients begin anew, without what they had.
        let since = if rng.one_in(8) { None } else { position };
        let bytes_max = if busy && rng.one_in(8) { 300 } else { usize::MAX };
        let (end, ended) = oneshot::channel();
        let (done, outcome) = oneshot::channel();
        let (sessions, channels) = (node.sessions.clone(), node.channels.clone());
        node.machine.env().spawn("subscribe", async move {
            let outcome = sessions.subscribe(&channels, (client, attempt), since, bytes_max, end).await;
            let _ = done.send(outcome);
        });
        drop(node);
        let leaves = busy && rng.one_in(8);
        let patience = if leaves { Duration::from_micros(rng.below(400_000)) } else { ANSWER_MAX };
        match self.executor.env().timeout(patience, outcome).await {
            None if leaves => {
                if let Some(node) = self.node(at) {
                    node.sessions.leave(client, Some(attempt));
                }
                None
            }
            None => {
                self.ledger.lock().fail(|| format!("HANG: client {client} gets no answer at node {at}"));
                None
            }
            Some(Ok(Ok(()))) => Some((at, ended)),
            Some(_) => None,
        }
    }
}
