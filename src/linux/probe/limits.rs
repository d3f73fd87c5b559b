//! Limits on data from a server in one attempt. They bound the cost of an attempt, whatever the
//! container sends and however long the probe's timeout is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Join, ReadBuf, ReadHalf, Take, WriteHalf};
use tokio::io::{join, split};

/// A connection from which only a limited number of bytes can be read. After these bytes, the
/// connection reads as closed.
pub(super) type Limited<S> = Join<Take<ReadHalf<S>>, WriteHalf<S>>;

/// Limits how many bytes can be read from a connection. Bytes of TLS count, too.
pub(super) fn bytes<S: AsyncRead + AsyncWrite>(stream: S, bytes: u64) -> Limited<S> {
    let (read, write) = split(stream);
    join(read.take(bytes), write)
}

/// Limits how many frames and bytes can be read from an HTTP/2 connection. Frames are limited
/// because the client answers most kinds of frames, even frames without payload.
pub(super) fn frames<S: AsyncRead + AsyncWrite>(
    stream: S,
    bytes: u64,
    frames: u32,
) -> Join<Frames<Take<ReadHalf<S>>>, WriteHalf<S>> {
    let (read, write) = split(stream);
    join(Frames::new(read.take(bytes), frames), write)
}

/// A reader that counts the frames of an HTTP/2 connection (RFC 9113, section 4.1).
#[derive(Debug)]
pub(super) struct Frames<R> {
    read: R,
    count: Count,
}

#[derive(Debug)]
struct Count {
    /// Number of frames that the server may still begin.
    left: u32,
    /// Number of bytes of the next frame's header that have been read.
    head: u8,
    /// Length of the next frame's payload, as far as the header's bytes that have been read tell
    /// it.
    length: usize,
    /// Bytes of payload left before the next header.
    payload: usize,
}

/// Size of a frame's header in bytes, and how many of these bytes hold the payload's length.
const HEAD: u8 = 9;
const LENGTH: u8 = 3;

impl<R> Frames<R> {
    fn new(read: R, frames: u32) -> Self {
        let count = Count {
            left: frames,
            head: 0,
            length: 0,
            payload: 0,
        };
        Self { read, count }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Frames<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.read).poll_read(context, buffer))?;
        let new = buffer.filled().get(before..).unwrap_or_default();
        Poll::Ready(match this.count.take(new) {
            true => Ok(()),
            false => Err(io::Error::other("too many frames")),
        })
    }
}

impl Count {
    /// Counts these bytes. Returns true if the total is still within the limit.
    fn take(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            let rest = bytes.get(self.payload..).unwrap_or_default();
            self.payload = self.payload.saturating_sub(bytes.len());
            let Some((byte, rest)) = rest.split_first() else {
                return true;
            };
            bytes = rest;
            if self.head < LENGTH {
                self.length = (self.length << 8) | usize::from(*byte);
            }
            self.head = self.head.saturating_add(1);
            if self.head == HEAD {
                let Some(left) = self.left.checked_sub(1) else {
                    return false;
                };
                (self.left, self.payload) = (left, self.length);
                (self.head, self.length) = (0, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(frames: u32) -> Count {
        Frames::new((), frames).count
    }

    /// A frame of this length; its kind does not matter.
    fn frame(length: u32) -> Vec<u8> {
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([6, 0, 0, 0, 0, 0]);
        frame.extend(vec![0xff; length as usize]);
        frame
    }

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let stream = [frame(0), frame(300), frame(0), frame(70_000), frame(8)].concat();
        for size in [1, 2, 3, 8, 9, 10, 11, 4096, stream.len()] {
            let mut enough = count(5);
            assert!(stream.chunks(size).all(|chunk| enough.take(chunk)));
            assert_eq!(enough.left, 0, "{size}");
            let mut too_few = count(4);
            assert!(!stream.chunks(size).all(|chunk| too_few.take(chunk)));
        }
    }

    #[test]
    fn a_frame_counts_when_its_head_is_whole() {
        let mut count = count(0);
        assert!(count.take(&frame(0)[..8]));
        assert!(!count.take(&[0]));
    }
}
