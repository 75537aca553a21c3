//! Tests of the executor alone.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn executor(seed: u64) -> Executor {
    Executor::new(Rng::new(seed), Duration::ZERO, Trace::new(100, false))
}

#[test]
fn time_jumps_to_the_next_timer() {
    let executor = executor(1);
    let env = executor.env();
    let end = executor.run(
        async move {
            let before = env.now();
            env.sleep(Duration::from_secs(60)).await;
            env.now() - before
        },
        1000,
        HOUR,
    );
    let End::Done(slept) = end else { panic!("{end:?}") };
    assert!(slept >= Duration::from_secs(60) && slept < Duration::from_secs(61), "{slept:?}");
}

#[test]
fn a_seed_replays_and_another_schedules_differently() {
    let order = |seed| {
        let executor = executor(seed);
        let env = executor.env();
        let finished: Arc<Mutex<Vec<u32>>> = Arc::default();
        let out = finished.clone();
        executor.run(
            async move {
                for task in 0..10 {
                    let (env2, finished) = (env.clone(), finished.clone());
                    env.spawn("task", async move {
                        env2.sleep(Duration::from_micros(env2.random_u64() % 3)).await;
                        finished.lock().push(task);
                    });
                }
                env.sleep(Duration::from_secs(1)).await;
            },
            1000,
            HOUR,
        );
        let order = out.lock().clone();
        assert_eq!(order.len(), 10);
        (order, executor.trace().hash())
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn a_deadlock_is_found_and_named() {
    let executor = executor(1);
    let env = executor.env();
    let end = executor.run(
        async move {
            env.spawn("stuck", std::future::pending());
            std::future::pending::<()>().await;
        },
        1000,
        HOUR,
    );
    let End::Deadlock(mut names) = end else { panic!("{end:?}") };
    names.sort_unstable();
    assert_eq!(names, ["main", "stuck"]);
}

#[test]
fn endless_work_meets_the_bounds_and_panics_are_reported() {
    let run = executor(1);
    let env = run.env();
    let spin = async move {
        loop {
            env.sleep(Duration::from_micros(1)).await;
        }
    };
    assert!(matches!(run.run(spin, 1000, HOUR), End::Limit("steps", _)));
    let run = executor(1);
    let env = run.env();
    let spin = async move {
        loop {
            env.sleep(Duration::from_secs(1)).await;
        }
    };
    assert!(matches!(run.run(spin, 10_000, HOUR), End::Limit("virtual time", _)));
    let run = executor(1);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let end = run.run(async { panic!("oh {}", 1 + 1) }, 100, HOUR);
    std::panic::set_hook(hook);
    let End::Panic("main", message) = end else { panic!("{end:?}") };
    assert_eq!(message, "oh 2");
}

#[test]
fn a_power_cut_drops_tasks_and_refuses_new_ones() {
    struct OnDrop(Env, Arc<AtomicU64>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
            let count = self.1.clone();
            self.0.spawn("late", async move {
                count.fetch_add(1000, Ordering::Relaxed);
            });
        }
    }
    let executor = executor(3);
    let env = executor.env();
    let count = Arc::new(AtomicU64::new(0));
    let guard = OnDrop(env.clone(), count.clone());
    executor.cut_after(20);
    let end = executor.run(
        async move {
            env.spawn("holder", async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
            loop {
                env.sleep(Duration::from_micros(1)).await;
            }
        },
        1_000,
        HOUR,
    );
    assert!(matches!(end, End::<()>::Cut));
    executor.shut_down();
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn blocking_work_returns_its_value_and_outlives_its_caller() {
    let executor = executor(5);
    let (env, runtime) = (executor.env(), executor.clone());
    let ran = Arc::new(AtomicU64::new(0));
    let counter = ran.clone();
    let end = executor.run(
        async move {
            let other = counter.clone();
            drop(runtime.blocking(Box::new(move || {
                other.fetch_add(1, Ordering::Relaxed);
            })));
            env.sleep(Duration::from_secs(1)).await;
            env.blocking(move || counter.fetch_add(1, Ordering::Relaxed)).await
        },
        1000,
        HOUR,
    );
    assert!(matches!(end, End::Done(Some(1))), "{end:?}");
    assert_eq!(ran.load(Ordering::Relaxed), 2);
}
