// SPDX-License-Identifier: Apache-2.0

/**
 * The services of the reprised that served this page, over the Connect
 * protocol. Bodies are binary protobuf: bulk arrays need no text parsing.
 */
import {Code, ConnectError, createClient, type Client} from '@connectrpc/connect';
import {createConnectTransport} from '@connectrpc/connect-web';
import {Planner} from '../gen/reprise/v1/planner_pb';
import {Control, Query} from '../gen/reprise/v1/query_pb';
import {fetchWith, type Early} from './early';

/** Requests of this page to its own server. */
export const transport = createConnectTransport({
  baseUrl: globalThis.location?.origin ?? '',
  useBinaryFormat: true,
  fetch: fetchWith((globalThis as {repriseEarly?: Early}).repriseEarly, (input, init) =>
    fetch(input, init),
  ),
});

export const query: Client<typeof Query> = createClient(Query, transport);
export const control: Client<typeof Control> = createClient(Control, transport);
export const planner: Client<typeof Planner> = createClient(Planner, transport);

/** Calls that answer at once give up after this long. */
export const QUICK = {timeoutMs: 8000} as const;

/** What is said where the server does not know this page's cookie; a stream that is refused has no words of its own. */
export const ASKS_FOR_TOKEN = 'this server asks for its token';

/** The server's own sentence, without the name of the code before it. */
export function sentenceOf(error: unknown): string {
  const {code, rawMessage} = ConnectError.from(error);
  return code === Code.Unauthenticated ? ASKS_FOR_TOKEN : rawMessage;
}

/** The server gave an answer, and it is "no": asking again changes nothing. */
export function isRefusal(error: unknown): boolean {
  const {NotFound, InvalidArgument, FailedPrecondition, Unimplemented, PermissionDenied} = Code;
  const noes = [NotFound, InvalidArgument, FailedPrecondition, Unimplemented, PermissionDenied];
  return noes.includes(ConnectError.from(error).code);
}

export function isCancelled(error: unknown): boolean {
  return ConnectError.from(error).code === Code.Canceled;
}
