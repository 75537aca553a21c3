//! Tests of the model of channels: the violations that it must detect.

use std::sync::Arc;

use steadfast_sim::model::channels::{ALL, Channels, Keeping, body_of};
use steadfast_store::{History, HistoryQuery, Position, Publication, Published};

const KEEPING: Keeping = Keeping { size: 3, ttl_ms: 1000 };

fn publication(offset: u64, id: u64) -> Arc<Publication> {
    Arc::new(Publication { offset, time_ms: 0, body: body_of(id, 20).into() })
}

fn history(epoch: u32, top: u64, shown: &[(u64, u64)], complete: bool) -> History {
    let publications = shown.iter().map(|(offset, id)| publication(*offset, *id)).collect();
    History { publications, position: Position { epoch, offset: top }, complete }
}

/// A channel of epoch 7 with five publications, of which three are kept. With `lax`, those with odd
/// numbers are asynchronous.
fn five(lax: bool) -> Channels {
    let mut model = Channels::new(1);
    model.restarted(0, &history(7, 0, &[], true), 0).expect("nothing");
    for id in 1..=5 {
        let sync = !lax || id % 2 == 0;
        assert_eq!(model.ask(0, 20, sync, KEEPING), id);
        model.delivered(0, 7, &publication(id, id)).expect("in order");
        let position = Position { epoch: 7, offset: id };
        model.answered(id, &Published { position, durable: sync }).expect("delivered");
    }
    model
}

fn fails(outcome: Result<(), String>, how: &str) {
    let what = outcome.expect_err(how);
    assert!(what.starts_with(how), "{what}");
}

#[test]
fn survivors_are_compared_with_the_acknowledgements() {
    let all = [(3, 3), (4, 4), (5, 5)];
    assert_eq!(five(false).restarted(0, &history(7, 5, &all, true), 0), Ok(()));
    fails(five(false).restarted(0, &history(7, 4, &all[..2], true), 0), "LOST");
    fails(five(false).restarted(0, &history(7, 5, &all[1..], true), 0), "LOST");
    assert_eq!(five(false).restarted(0, &history(7, 5, &[], true), 1000), Ok(()), "expired");
    fails(five(false).restarted(0, &history(8, 5, &all, true), 0), "EPOCH");
    fails(five(false).restarted(0, &history(7, 6, &all, true), 0), "WRONG");
    fails(five(false).restarted(0, &history(7, 5, &[(3, 3), (4, 4), (5, 2)], true), 0), "WRONG");
    let more = [(2, 2), (3, 3), (4, 4), (5, 5)];
    fails(five(false).restarted(0, &history(7, 5, &more, true), 0), "channel 0 shows 2");
}

#[test]
fn asynchronous_publications_may_be_lost_with_the_epoch() {
    let left = [(2, 2), (3, 3), (4, 4)];
    assert_eq!(five(true).restarted(0, &history(8, 4, &left, true), 0), Ok(()));
    fails(five(true).restarted(0, &history(7, 4, &left, true), 0), "EPOCH");
    fails(five(true).restarted(0, &history(8, 3, &[(1, 1), (2, 2), (3, 3)], true), 0), "LOST");
    let mut model = five(true);
    model.restarted(0, &history(8, 4, &left, true), 0).expect("the rest");
    fails(model.delivered(0, 8, &publication(5, 5)), "WRONG");
    assert_eq!(model.ask(0, 20, true, KEEPING), 6);
    assert_eq!(model.delivered(0, 8, &publication(5, 6)), Ok(()));
}

#[test]
fn deliveries_and_answers_are_in_order() {
    let mut model = five(false);
    for _ in 6..=8 {
        model.ask(0, 20, true, KEEPING);
    }
    fails(model.delivered(0, 7, &publication(7, 6)), "ORDER");
    fails(five(false).delivered(0, 7, &publication(5, 4)), "WRONG");
    let early = Published { position: Position { epoch: 7, offset: 6 }, durable: true };
    fails(model.answered(7, &early), "ORDER");
    fails(model.saw(0, 7, &publication(6, 7)), "EARLY");
    fails(model.delivered(0, 9, &publication(6, 7)), "EPOCH");
}

#[test]
fn recovery_from_a_position_has_no_gap_or_is_refused() {
    let recover = |since: Position, history: History| {
        let mut model = five(false);
        let (before, query) = (model.before(0), HistoryQuery { since: Some(since), ..ALL });
        model.check_history(0, &before, &query, &history, 0)
    };
    let since = Position { epoch: 7, offset: 3 };
    assert_eq!(recover(since, history(7, 5, &[(4, 4), (5, 5)], true)), Ok(()));
    fails(recover(since, history(7, 5, &[(5, 5)], true)), "LOST");
    fails(recover(since, history(7, 5, &[(5, 5), (4, 4)], true)), "ORDER");
    fails(recover(since, history(7, 5, &[(4, 4), (5, 5)], false)), "channel 0 does not recover");
    let old = Position { epoch: 7, offset: 1 };
    fails(recover(old, history(7, 5, &[(3, 3), (4, 4), (5, 5)], true)), "GAP");
    assert_eq!(recover(old, history(7, 5, &[(3, 3), (4, 4), (5, 5)], false)), Ok(()));
    let foreign = Position { epoch: 6, offset: 3 };
    fails(recover(foreign, history(7, 5, &[(4, 4), (5, 5)], true)), "channel 0 recovers");
}
