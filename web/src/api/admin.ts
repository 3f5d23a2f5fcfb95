// SPDX-License-Identifier: Apache-2.0

/** What the owner of the server does with its store; loaded when it is first needed. */
import {createClient} from '@connectrpc/connect';
import {Admin} from '../gen/reprise/v1/admin_pb';
import {transport} from './client';

export const admin = createClient(Admin, transport);
