use super::*;
use std::thread;

const SHORT: Duration = Duration::from_millis(50);

/// What each rank's thread gives.
fn each<T: Send>(ends: Vec<impl Transport>, work: impl Fn(&mut dyn Transport) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ends.into_iter().map(|mut end| scope.spawn(move || work(&mut end))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Numbers that tell where a byte came from.
fn byte(from: usize, to: usize, at: usize) -> u8 {
    (from * 131 + to * 17 + at * 7) as u8
}

/// Sizes of messages, some of none and some of more than a pipe holds.
fn size(from: usize, to: usize) -> usize {
    [0, 1, 5, PIPE_BYTES - HEADER_BYTES, 3 * PIPE_BYTES + 11, 1000][(from * 3 + to) % 6]
}

fn places(sizes: impl Iterator<Item = usize>) -> Vec<usize> {
    let ends = sizes.scan(0, |sum, size| {
        *sum += size;
        Some(*sum)
    });
    [0].into_iter().chain(ends).collect()
}

fn message(from: usize, to: usize) -> Vec<u8> {
    (0..size(from, to)).map(|at| byte(from, to, at)).collect()
}

#[test]
fn all_to_all_brings_every_part_where_it_belongs() {
    for ranks in [1, 2, 3, 4, 8] {
        each(in_process(ranks), |end| {
            let own = end.rank();
            let sent_at = places((0..ranks).map(|to| size(own, to)));
            let received_at = places((0..ranks).map(|from| size(from, own)));
            let sent: Vec<u8> = (0..ranks).flat_map(|to| message(own, to)).collect();
            let expected: Vec<u8> = (0..ranks).flat_map(|from| message(from, own)).collect();
            for _ in 0..3 {
                let mut received = vec![0; expected.len()];
                end.all_to_all(&sent, &sent_at, &mut received, &received_at).unwrap();
                assert!(received == expected, "{ranks} ranks, rank {own}");
            }
        });
    }
}

#[test]
fn all_gather_brings_every_part_everywhere() {
    for ranks in [1, 2, 3, 4, 8] {
        let expected: Vec<u8> = (0..ranks).flat_map(|from| message(from, 0)).collect();
        let at = places((0..ranks).map(|from| size(from, 0)));
        each(in_process(ranks), |end| {
            let own = at[end.rank()]..at[end.rank() + 1];
            let mut all = vec![0; expected.len()];
            all[own.clone()].copy_from_slice(&expected[own]);
            end.all_gather(&mut all, &at).unwrap();
            assert!(all == expected, "{ranks} ranks");
        });
    }
}

#[test]
fn broadcast_send_receive_and_barrier_follow_one_another() {
    for ranks in [1, 2, 3, 4, 8] {
        each(in_process(ranks), |end| {
            let own = end.rank();
            for root in 0..ranks {
                let mut bytes = if own == root { message(root, 4) } else { vec![0; size(root, 4)] };
                end.broadcast(&mut bytes, root).unwrap();
                assert!(bytes == message(root, 4));
            }
            end.barrier().unwrap();
            // Down the line, as a pipeline does.
            let mut bytes = vec![0; size(1, 1)];
            if own > 0 {
                end.receive(&mut bytes, own - 1).unwrap();
            }
            bytes.iter_mut().for_each(|byte| *byte += 1);
            if own + 1 < ranks {
                end.send(&bytes, own + 1).unwrap();
            }
            assert!(bytes.iter().all(|byte| *byte == own as u8 + 1));
            end.barrier().unwrap();
        });
    }
}

#[test]
fn nobody_passes_a_barrier_before_all_are_there() {
    let here = std::sync::atomic::AtomicUsize::new(0);
    each(in_process(4), |end| {
        here.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        end.barrier().unwrap();
        assert_eq!(here.load(std::sync::atomic::Ordering::SeqCst), 4);
    });
}

#[test]
fn a_rank_that_goes_away_is_named_by_all_others() {
    for ranks in [2, 3, 8] {
        let gone = ranks - 1;
        let errors = each(in_process(ranks), |end| {
            end.barrier().unwrap();
            (end.rank() != gone).then(|| end.barrier().unwrap_err())
        });
        for error in errors.into_iter().flatten() {
            assert_eq!(error, Error::Gone { peer: Peer::unknown(gone) });
        }
    }
}

#[test]
fn the_first_to_go_is_named_by_those_who_did_not_wait_for_it() {
    let errors = each(in_process(3), |end| match end.rank() {
        0 => Some(end.receive(&mut [0], 1).unwrap_err()),
        1 => Some(end.receive(&mut [0], 2).unwrap_err()),
        _ => None,
    });
    assert_eq!(errors[0], Some(Error::Gone { peer: Peer::unknown(2) }));
    assert_eq!(errors[0], errors[1]);
    assert_eq!(errors[0].as_ref().unwrap().to_string(), "rank 2 is gone; go on from the last checkpoint");
}

#[test]
fn groups_within_a_group_go_by_the_same_wire() {
    each(in_process(6), |end| {
        let own = end.rank();
        // Neighbours, and every third.
        let (first, step) = (own / 3 * 3, own % 3);
        let mut near = end.among(&[first, first + 1, first + 2]).unwrap();
        let mut far = end.among(&[step + 3, step]).unwrap();
        assert_eq!((near.rank(), near.ranks(), far.rank(), far.ranks()), (own % 3, 3, 1 - own / 3, 2));
        for round in 0..3 {
            let mut all = [0; 3];
            all[own % 3] = own as u8 + round;
            near.all_gather(&mut all, &[0, 1, 2, 3]).unwrap();
            assert_eq!(all, [0, 1, 2].map(|rank| first as u8 + rank + round));
            // More than a pipe holds, both ways at once.
            let (sent, mut received) = (vec![own as u8; 2 * PIPE_BYTES], vec![0; 2 * PIPE_BYTES]);
            far.swap(&sent, &mut received, own / 3).unwrap();
            assert!(received.iter().all(|byte| *byte as usize == (own + 3) % 6));
            let mut word = [own as u8];
            end.broadcast(&mut word, 4).unwrap();
            assert_eq!(word, [4]);
        }
        assert_eq!(near.peer(1).rank, first + 1, "ranks are called as they are in the whole");
        let inner = near.among(&[near.rank()]).unwrap();
        assert_eq!((inner.rank(), inner.ranks()), (0, 1));
        for wrong in [&[(own + 1) % 6][..], &[own, own], &[own, 6], &[]] {
            assert!(matches!(end.among(wrong).err(), Some(Error::Misuse(_))), "{wrong:?}");
        }
    });
}

#[test]
fn what_was_sent_before_leaving_is_received() {
    each(in_process(2), |end| match end.rank() {
        0 => end.send(&[1, 2, 3], 1).unwrap(),
        _ => {
            thread::sleep(SHORT);
            let mut bytes = [0; 3];
            end.receive(&mut bytes, 0).unwrap();
            assert_eq!(bytes, [1, 2, 3]);
        }
    });
}

#[test]
fn a_silent_rank_is_named_when_patience_ends() {
    let ends = in_process_within(3, SHORT);
    // Rank 1 stays, and says nothing.
    let (failed, done) = (Mutex::new(0), Condvar::new());
    let errors = each(ends, |end| {
        if end.rank() == 1 {
            drop(done.wait_while(lock(&failed), |failed| *failed < 2).unwrap());
            return None;
        }
        let error = end.barrier().unwrap_err();
        assert_eq!(end.barrier().unwrap_err().rank(), Some(1), "there is no going on");
        *lock(&failed) += 1;
        done.notify_all();
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        assert_eq!(error, Error::Silent { peer: Peer::unknown(1), waited: SHORT });
        assert!(error.to_string().starts_with("rank 1 has been silent for 0.05 seconds"), "{error}");
    }
}

#[test]
fn ranks_that_do_not_agree_on_sizes_are_told() {
    let errors = each(in_process(2), |end| match end.rank() {
        0 => end.broadcast(&mut [0; 3], 0).err(),
        _ => end.broadcast(&mut [0; 4], 0).err(),
    });
    assert_eq!(errors[1], Some(Error::Unlike { peer: Peer::unknown(0), expected: 4, came: 3 }));
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let mut ends = in_process(2);
    let end = &mut ends[0];
    let misused = |result: Result<()>| assert!(matches!(result, Err(Error::Misuse(_))), "{result:?}");
    misused(end.send(&[1], 0));
    misused(end.receive(&mut [1], 2));
    misused(end.swap(&[1], &mut [1], 0));
    misused(end.broadcast(&mut [1], 2));
    misused(end.all_gather(&mut [1, 2], &[0, 1, 3]));
    misused(end.all_gather(&mut [1, 2], &[0, 2]));
    misused(end.all_gather(&mut [1, 2], &[0, 2, 1]));
    misused(end.all_to_all(&[1, 2], &[0, 1, 2], &mut [0; 3], &[0, 2, 3]));
}
